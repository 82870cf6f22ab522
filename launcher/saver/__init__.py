"""The saver: a process per node that writes snapshots, which are in memory, to storage."""
