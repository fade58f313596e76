"""The model of a cluster: its parts against cases that are known in closed form."""
