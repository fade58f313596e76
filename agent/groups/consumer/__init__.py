"""The new group protocol (KIP-848): members, subscriptions, assignors."""
