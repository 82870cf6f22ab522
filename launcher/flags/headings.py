"""The headings of ``ft-run --help``, in order; options declare their flags under them."""

from .flag import Heading

HEADINGS = ("Workers", "Rendezvous", "Security", "Failures", "Checks", "Logs", "Script")
WORKERS, RENDEZVOUS, SECURITY, FAILURES, CHECKS, LOGS, SCRIPT = map(Heading, HEADINGS)
COMPATIBILITY = Heading("Compatibility with torchrun")
