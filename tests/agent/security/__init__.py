"""Tests of `agent/security/`."""
