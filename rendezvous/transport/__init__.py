"""gRPC: the server of the master, the link of a node to it, the codec. It has no rules."""
