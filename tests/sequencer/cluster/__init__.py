"""Tests of `sequencer/cluster/`."""
