"""Tests of `tidelog/devstack/`."""
