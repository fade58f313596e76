"""Tests of `sequencer/security/`."""
