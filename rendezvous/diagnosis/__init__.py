"""Whether workers hang, and which: the stacks of all ranks, asked for and judged. No gRPC."""
