"""Who a client is: its proofs, users and passwords."""
