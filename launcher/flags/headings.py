"""The headings of ``ft-run --help``, under which options declare their flags."""

from .flag import Heading

HEADINGS = ("Workers", "Rendezvous", "Security", "Failures", "Checks", "Logs", "Script")
"""In the order of the help."""
WORKERS, RENDEZVOUS, SECURITY, FAILURES, CHECKS, LOGS, SCRIPT = map(Heading, HEADINGS)
COMPATIBILITY = Heading("Compatibility with torchrun")
