"""The commands, one module for each; every command returns an exit code."""
