"""Kafka's wire protocol: frames, connections, dispatch, error codes.

A *response* is what a client gets for its request, as Kafka calls it. An *answer* is what one part of the
agent tells another, such as a group's machine, from which a handler makes the response.
"""
