"""The workers' output: the log directory, and the relay that copies it to the console."""
