"""Spark's data source `tidelog`: reads topics from the bucket, raw and Parquet alike, and writes to them."""
