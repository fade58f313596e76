"""Tests of agent/security/acls."""
