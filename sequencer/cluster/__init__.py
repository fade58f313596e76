"""The cluster: its agents, its bucket's owner, its store."""
