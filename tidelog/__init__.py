"""The front door: the command, settings, the embedded development stack."""
