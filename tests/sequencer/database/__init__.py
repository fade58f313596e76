"""Tests of `sequencer/database/`."""
