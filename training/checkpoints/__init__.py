"""Snapshots in memory and checkpoints on storage: what ``Checkpointer`` is made of."""
