"""SQL over topics: `tidelog sql`, as a command and as a shell, by DuckDB or Spark."""
