"""SASL: what a client and an agent say to each other until the agent knows who the client is. Pure."""
