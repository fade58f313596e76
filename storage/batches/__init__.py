"""Kafka's record batches: parsing, validation, compression, native kernels."""
