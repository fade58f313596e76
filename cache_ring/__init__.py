"""The reads: membership, consistent hash ring, page cache, peer reads, coordinates."""
