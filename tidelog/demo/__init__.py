"""`tidelog demo`: the whole path on real data, with every record checked."""
