"""The command, the stack and the demonstration."""
