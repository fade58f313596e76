"""Tenants: their rows and limits, the names of what belongs to them, and their bill."""
