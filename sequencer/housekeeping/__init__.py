"""Retention, merging, garbage, jobs, and what one agent measures for all."""
