"""What each command does, a module per command; it ends with an exit status."""
