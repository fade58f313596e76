"""What is measured: Tidelog and its peers, each started for itself, with the meters of all its processes."""
