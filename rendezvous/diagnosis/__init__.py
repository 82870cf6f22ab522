"""Hang detection: collects the stacks of all ranks and decides which of them hang. No gRPC."""
