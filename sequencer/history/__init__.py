"""The Parquet form of topics: tables, their files and jobs."""
