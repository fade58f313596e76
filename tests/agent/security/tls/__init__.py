"""Tests of agent/security/tls."""
