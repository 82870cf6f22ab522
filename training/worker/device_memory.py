"""An accelerator that runs out of memory in a part of ``ElasticBatches``: what the agent learns.

The worker writes the size of the part to a file beside its error file, for
``--on-failure device-oom=shrink``. The agent reads it when the worker has failed, and the workers
of the next round find a smaller size in their environment.
"""

import os
from contextlib import suppress

VARIABLE = "FT_RUN_MICRO_BATCH"
"""The most samples of a part, in the environment of workers; not set: the value of the script."""
SUFFIX = ".micro_batch"
"""What the name of the file adds to that of the error file."""
_DIGITS_MAX = 9

_written: set[str] = set()
"""Files of this process."""


def given_micro_batch() -> int | None:
    """Return the most samples of a part that ft-run has set; None: it has set none."""
    given = os.environ.get(VARIABLE, "")
    return int(given) if given.isdecimal() and int(given) else None


def out_of_memory(samples: int) -> None:
    """Record that an accelerator ran out of memory; ignored without an error file.

    Args:
        samples: of the part; in its step, the most of any rank.
    """
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with suppress(OSError):  # then it is a failure like others
            with open(path + SUFFIX, "w", encoding="ascii") as file:
                file.write(str(samples))
            _written.add(path + SUFFIX)


def has_survived() -> None:
    """Record that the script continues: it has handled the exception."""
    while _written:
        with suppress(OSError):
            os.unlink(_written.pop())


def samples_of(data: bytes | None) -> int:
    """Return the number of samples from the content of the file; 0: it has none."""
    text = (data or b"").decode("ascii", errors="replace")
    return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else 0
