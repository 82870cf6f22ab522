"""What a person reads: event lines, the live line, the failure report, answers."""
