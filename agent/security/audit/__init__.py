"""The audit trail: who did what, from where, with which outcome (docs/audit.md)."""
