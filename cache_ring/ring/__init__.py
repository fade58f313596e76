"""Which agents are alive, and which of them serves what."""
