"""Which agents live, and which of them serves what."""
