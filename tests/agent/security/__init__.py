"""Tests of agent/security."""
