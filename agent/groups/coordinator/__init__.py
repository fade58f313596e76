"""Groups that this agent coordinates: claimed, run, ended."""
