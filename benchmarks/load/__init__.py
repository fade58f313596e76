"""The load of all systems alike: batches encoded beforehand, sent and fetched over blocking sockets in processes of
their own, so that a client costs next to nothing beside the server that is measured."""
