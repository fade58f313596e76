"""The whole suite."""
