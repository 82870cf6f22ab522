"""The case table: what is run under both launchers, and which rows of the contract it covers."""

from typing import Final

from ft_run.tests.conformance.rows_command_line import ARGUMENTS, REFUSALS, in_every_spelling
from ft_run.tests.conformance.rows_failure import FAILURES, SIGNALS
from ft_run.tests.conformance.rows_output import EVENTS, LEVELS, OUTPUT, PREFIXES
from ft_run.tests.conformance.rows_workers import ENVIRONMENT, MACHINES, NAMED_ENDPOINT, NODES

REQUIRED: Final = (
    # Flags that torch's own parser does not name, and every section of the contract besides them.
    *("argv", "local-rank-macro", "repeated", "PET", "script", "usage"),
    *("c10d", "static", "environment", "OMP_NUM_THREADS", "proxies", "stdin"),
    *("PYTHON_EXEC", "LOGLEVEL", "TORCHELASTIC_ERROR_FILE", "prefix", "error-file", "record"),
    *("failure", "signals", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"),
)
"""What the rows must cover, besides every flag of torchrun."""

ROWS: Final = [
    *in_every_spelling(),
    *ARGUMENTS,
    *ENVIRONMENT,
    *OUTPUT,
    *PREFIXES,
    *LEVELS,
    *EVENTS,
    *SIGNALS,
    *FAILURES,
    *NAMED_ENDPOINT,
    *NODES,
    *MACHINES,
    *REFUSALS,
]
