"""Measures Tidelog per second and per CPU second, and the raw object store in the same run (`make bench`)."""
