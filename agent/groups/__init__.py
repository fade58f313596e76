"""Consumer groups: pure state machines (`classic.py`, `consumer.py`), and the coordinator that runs them."""
