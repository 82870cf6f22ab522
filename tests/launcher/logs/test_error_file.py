"""What a worker leaves at ``TORCHELASTIC_ERROR_FILE``: a record, or anything else."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ft_run import defaults
from ft_run.launcher.logs.error_file import MESSAGE_MAX_CHARS, read_error_file
from ft_run.launcher.reporting.failure_report import final_report
from ft_run.launcher.workers.failure_record import worker_failure
from ft_run.rendezvous.protocol.failure import Failure
from ft_run.rendezvous.protocol.messages import Assignment, Failed, Outcome, Verdict
from ft_run.rendezvous.transport.codec import decode_node, encode_node

TRACEBACK = "Traceback (most recent call last):\n  loss is nan"


def record(timestamp: Any = "1700000000", **more: Any) -> dict[str, Any]:
    extra = {"py_callstack": TRACEBACK, "timestamp": timestamp}
    return {"message": {"message": "ValueError: nan", "extraInfo": extra, **more}}


def written(path: Path, content: Any) -> str:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(json.dumps(content))
    return str(path)


def failure_of(path: str) -> Failure:
    assignment = Assignment(0, "", 0, 0, 1, 0, 1, 0, 1, "", "127.0.0.1", 1, "", None)
    return worker_failure(
        assignment, 0, host="host", role="default", pid=7, exit_code=1, error_file=path,
        stderr_tail=b"last words\n", out_of_memory=False, after_stop=False,
    )  # fmt: skip


def assert_it_is_told(failure: Failure) -> str:
    """Bring a failure to the master and back; return the report of it."""
    message = decode_node(encode_node(Failed(0, failure)))
    assert isinstance(message, Failed)
    told = message.failure
    verdict = Verdict(Outcome.WORKERS_FAILED, 1, told.summary(), 0, 1, told, (told,), 1)
    return final_report(verdict, "train.py")


def test_a_record_is_read(tmp_path: Path) -> None:
    found = read_error_file(written(tmp_path / "error.json", record()))
    assert found is not None
    assert json.loads(found.text) == record()
    assert (found.message, found.time_s) == ("ValueError: nan", 1_700_000_000)


@pytest.mark.parametrize(
    "timestamp",
    [
        1_700_000_000_000,  # milli-, micro-, nanoseconds
        "9999999999",  # as many digits as the latest time has
        "9" * 5000,
        10**17,
        -1,
        True,
        "٣",
        "\ud800",
        "yesterday",
    ],
)
def test_a_record_with_an_odd_time_is_of_now(tmp_path: Path, timestamp: Any) -> None:
    before = int(time.time())
    failure = failure_of(written(tmp_path / "error.json", record(timestamp)))
    assert before <= failure.time_s <= time.time()
    assert failure.message == "ValueError: nan"
    assert TRACEBACK.splitlines()[1] in assert_it_is_told(failure)


def deep(levels: int) -> bytes:
    return b'{"message": ' + b"[" * levels + b"]" * levels + b"}"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        deep(50),
        b'{"message": {"message": "m", "deep": ' + b"[" * 500 + b"]" * 500 + b"}}",
        b'{"message": "m", "n": NaN}',
        b'{"message": "m", "n": 1e999}',
        b'{"message": "m", "n": %s}' % (b"9" * 22),
        b'{"message": "m", "n": %s}' % (b"9" * 5000),
        b'{"message": "m"} trailing',
        b'{"message": "' + b"x" * (16 * defaults.ERROR_FILE_MAX_BYTES) + b'"}',
        [record()],
        {"message": None},
        {"no message": "m"},
    ],
    ids=lambda content: repr(content)[:40],
)
def test_what_is_no_record_is_none(tmp_path: Path, content: Any) -> None:
    path = written(tmp_path / "error.json", content)
    assert read_error_file(path) is None
    failure = failure_of(path)
    assert (failure.error_file, failure.error_json, failure.message) == ("", "", "last words")
    assert "last words" in assert_it_is_told(failure)


@pytest.mark.parametrize(
    "content",
    [
        record(more="\ud800 \udfff"),
        {"message": "\udc80"},
        {"message": " \n\t "},
        {"message": {"message": ["list"], "extraInfo": {"py_callstack": [1]}}},
        {"message": {"message": None, "extraInfo": "a text"}},
        {"message": {}},
        {"message": "m" * 100_000},
        {"message": {"message": "é" * 30_000, "extraInfo": {"py_callstack": "\ud800" * 30_000}}},
        record("1" * 100_000),
    ],
    ids=lambda content: repr(content)[:40],
)
def test_a_record_with_odd_parts_is_told_and_bounded(tmp_path: Path, content: Any) -> None:
    failure = failure_of(written(tmp_path / "error.json", content))
    assert failure.error_json
    assert len(failure.error_json) <= defaults.ERROR_FILE_MAX_BYTES
    assert len(failure.message) <= MESSAGE_MAX_CHARS
    assert_it_is_told(failure)


def test_a_message_that_is_no_utf_8_is_read_all_the_same(tmp_path: Path) -> None:
    found = read_error_file(written(tmp_path / "error.json", b'{"message": "caf\xe9"}'))
    assert found is not None
    assert found.message == "caf\ufffd"


def test_no_file_was_asked_for() -> None:
    assert read_error_file("") is None
