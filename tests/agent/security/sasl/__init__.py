"""SASL's state machines."""
