"""Tests of agent/security/logins."""
