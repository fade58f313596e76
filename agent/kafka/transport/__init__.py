"""Sockets to clients: frames, the order of requests, memory, slow clients."""
