"""The HTTP side of an agent."""
