"""Snapshots in memory and checkpoints on storage: the implementation of ``Checkpointer``."""
