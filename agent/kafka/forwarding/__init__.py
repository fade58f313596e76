"""One-address mode: requests of groups go on to their coordinator."""
