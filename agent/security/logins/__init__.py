"""Logins of clients: credentials that this agent knows, checks of passwords and tokens, and their bounds."""
