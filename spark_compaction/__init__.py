"""Spark: segments to Parquet in Iceberg tables, TTL, SQL over history."""
