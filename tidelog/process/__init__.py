"""The process of an agent: its start, settings, logs, memory."""
