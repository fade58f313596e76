"""The measured systems: Tidelog and its peers. Starts each one alone, and meters all its processes."""
