"""The driver of the end-to-end tests, for these too."""

from ft_run.tests.e2e.conftest import default_signals, free_port, ft

__all__ = ["default_signals", "free_port", "ft"]
