"""Who the cluster is: its agents, its bucket's owner, its store."""
