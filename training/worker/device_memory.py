"""Reports to the agent that an accelerator ran out of memory in a part of ``ElasticBatches``.

For ``--on-failure device-oom=shrink``, the worker writes the size of the part to a file next to its
error file. The agent reads it after the worker has failed, and sets a smaller size in the
environment of the next round's workers.
"""

import os
from contextlib import suppress

VARIABLE = "FT_RUN_MICRO_BATCH"
"""Maximum number of samples per part, in the environment of workers; unset to use the script's."""
SUFFIX = ".micro_batch"
"""Suffix of the file's name after the name of the error file."""
_DIGITS_MAX = 9

_written: set[str] = set()
"""Files of this process."""


def given_micro_batch() -> int | None:
    """Return the maximum number of samples per part that ft-run has set; None if unset."""
    given = os.environ.get(VARIABLE, "")
    return int(given) if given.isdecimal() and int(given) else None


def out_of_memory(samples: int) -> None:
    """Record the size of a part, the maximum of all ranks, that exceeded device memory."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        with suppress(OSError):  # then it is a failure like others
            with open(path + SUFFIX, "w", encoding="ascii") as file:
                file.write(str(samples))
            _written.add(path + SUFFIX)


def has_survived() -> None:
    """Record that the script continues, so it has handled the exception."""
    while _written:
        with suppress(OSError):
            os.unlink(_written.pop())


def samples_of(data: bytes | None) -> int:
    """Return the number of samples from the content of the file; 0 if it has none."""
    text = (data or b"").decode("ascii", errors="replace")
    return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else 0
