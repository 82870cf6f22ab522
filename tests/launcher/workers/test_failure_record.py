"""What is recorded of a worker's end, where torch has put the rank before each line."""

import json
from pathlib import Path

import pytest
from ft_run.launcher.workers.failure_record import worker_failure
from ft_run.launcher.workers.smaller_parts import propose
from ft_run.rendezvous.policy.matches import look_for_slip
from ft_run.rendezvous.protocol.failure import Evidence, Failure, evidence
from ft_run.rendezvous.protocol.messages import Assignment
from ft_run.training.worker.device_memory import SUFFIX

ASSIGNMENT = Assignment(0, "m", 0, 0, 1, 0, 2, 0, 2, "n", "127.0.0.1", 1, "", None)
CHAINED = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    reduce()
ConnectionResetError: [Errno 104] Connection reset by peer

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
    raise RuntimeError("no gradients") from error
RuntimeError: no gradients
"""


def record(text: str, prefix: str, error_file: str = "", *, out_of_memory: bool = False) -> Failure:
    tail = "".join(f"{prefix}{line}" for line in text.splitlines(keepends=True))
    return worker_failure(
        ASSIGNMENT,
        1,
        host="h",
        role="default",
        pid=7,
        exit_code=1,
        error_file=error_file,
        stderr_tail=tail.encode(),
        out_of_memory=out_of_memory,
        after_stop=False,
    )


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_an_exception_that_follows_from_the_loss_of_a_peer_is_no_root_cause(prefix: str) -> None:
    failure = record(CHAINED, prefix)
    assert evidence(failure) is Evidence.COLLATERAL
    assert failure.message == "RuntimeError: no gradients"
    assert failure.stderr_tail == CHAINED


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 3, in <module>
  |     raise ExceptionGroup("tasks", errors)
  | ExceptionGroup: tasks (1 sub-exception)
  +-+---------------- 1 ----------------
    | ConnectionResetError: [Errno 104] Connection reset by peer
    +------------------------------------
"""
PLAIN = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise RuntimeError("no gradients")  # not: connection reset
RuntimeError: no gradients
"""


@pytest.mark.parametrize(
    ("stack", "found"),
    [(CHAINED, Evidence.COLLATERAL), (GROUP, Evidence.COLLATERAL), (PLAIN, Evidence.OWN)],
)
def test_so_it_is_where_the_exception_is_recorded(
    tmp_path: Path, stack: str, found: Evidence
) -> None:
    path = tmp_path / "error.json"
    message = {"message": "RuntimeError: no gradients", "extraInfo": {"py_callstack": stack}}
    path.write_text(json.dumps({"message": message}))
    failure = record("", "", str(path))
    assert evidence(failure) is found
    assert failure.message == "RuntimeError: no gradients"


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_an_import_error_is_one(prefix: str) -> None:
    failure = record("Traceback (most recent call last):\nImportError: no torhc\n", prefix)
    assert look_for_slip(failure).matches
    assert failure.summary() == "rank 1 on node 0 (h) exited with 1: ImportError: no torhc"


def test_a_warning_of_torch_keeps_its_own_words() -> None:
    assert record("[rank1]:[W1122 03:34:25.12 a.cpp:1] no destroy\n", "").message == (
        "[W1122 03:34:25.12 a.cpp:1] no destroy"
    )


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory", "16", 16),
        ("", "16", 16),  # nothing is known of the exception
        ("ValueError: no", "16", 0),  # the script went on, and failed otherwise
        ("torch.OutOfMemoryError: CUDA out of memory", None, 0),
        ("torch.OutOfMemoryError: CUDA out of memory", "16 samples", 0),
        ("torch.OutOfMemoryError: CUDA out of memory", "1" * 12, 0),
    ],
)
def test_the_part_in_which_an_accelerator_ran_out_of_memory(
    tmp_path: Path, text: str, content: str | None, expected: int
) -> None:
    file = tmp_path / "error.json"
    if content is not None:
        Path(f"{file}{SUFFIX}").write_text(content)
    assert record(text, "", str(file)).proposal == propose(expected, ())
    assert record(text, "", str(file), out_of_memory=True).proposal is None
    if text:
        file.write_text(
            json.dumps({"message": {"message": "Failed: x", "extraInfo": {"py_callstack": text}}})
        )
        assert record("other", "", str(file)).proposal == propose(expected, ())
