"""TLS: certificates and their files, handshakes, encrypted connections, and the names in certificates."""
