"""The stack under kills, outages and hostile input. Tests compare acknowledged records one by one."""
