"""The housekeeper: retention, garbage collection, topic deletion, the doctor."""
