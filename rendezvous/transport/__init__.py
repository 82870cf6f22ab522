"""gRPC around the group: the master, its server, the link of a node to it, the codec.

Nothing is decided here.
"""
