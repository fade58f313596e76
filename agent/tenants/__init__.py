"""Tenants at the edge: whose client asks, and what names it sees (docs/tenants.md)."""
