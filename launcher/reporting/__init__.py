"""What a person reads: the console, the live line, the failure report, answers."""
