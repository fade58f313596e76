"""Native code: compiled once, loaded without numba."""
