"""Tests of SQL over topics: by DuckDB, by Spark, and in the shell."""
