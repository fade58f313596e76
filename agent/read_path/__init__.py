"""From a fetch request to record batches: coordinates, pages, response."""
