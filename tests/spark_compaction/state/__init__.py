"""Tests of `spark_compaction.state`."""
