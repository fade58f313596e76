"""Tests of `sequencer/topics/`."""
