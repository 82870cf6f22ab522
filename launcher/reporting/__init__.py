"""Output for the user: the console, the live line, the failure report, replies of commands."""
