"""The command `tidelog`, its settings, and the embedded development stack."""
