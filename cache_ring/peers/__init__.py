"""Connections between agents: proof, protocol, client, server."""
