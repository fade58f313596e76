"""From a produce request to an acknowledged offset: accumulate, seal, upload, commit."""
