"""Groups that change from one protocol to the other."""
