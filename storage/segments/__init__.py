"""Segments and journal objects: their bytes and their keys."""
