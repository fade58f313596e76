"""Client quotas: which applies to a client, and this agent's share of it."""
