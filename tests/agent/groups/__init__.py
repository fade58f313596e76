"""Consumer groups: transcripts for people, state machines of hypothesis, and the coordinator with real
parts.
"""
