"""The stack under kills, outages and hostile input; what was acknowledged is compared record by record."""
