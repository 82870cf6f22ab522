"""The commands of ft-run, one module each; every command returns an exit code."""
