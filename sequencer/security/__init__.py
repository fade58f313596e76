"""Who may come in: users and what proves that it is they."""
