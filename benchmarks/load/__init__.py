"""The load, the same for all systems. Batches are encoded beforehand. Separate processes send and fetch them
over blocking sockets, so that a client costs little compared with the measured server.
"""
