"""One module per Kafka API; its docstring names versions, KIPs and what is refused."""
