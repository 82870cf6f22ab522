"""The saver: one process per node that writes snapshots from memory to storage."""
