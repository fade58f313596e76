"""Tests of `sequencer/tenants/`."""
