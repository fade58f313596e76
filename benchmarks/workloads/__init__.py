"""The workloads (a) to (h): each a function of a running system that returns figures by name."""
