"""The address that a node advertises, and the error file that it passes on."""

import json
import os
import socket
from pathlib import Path

import pytest
from ft_run.launcher.agent.run import advertised, pass_on_error_file
from ft_run.launcher.machine.network import is_local_address
from ft_run.launcher.options import RendezvousOptions
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.failure import Failure, FailureKind


def address(
    endpoint: Endpoint | None = None, master_addr: str | None = None, local_addr: str | None = None
) -> str:
    options = RendezvousOptions(
        job_id="j", endpoint=endpoint, master_addr=master_addr, local_addr=local_addr
    )
    return advertised(options, lambda _: None).find()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_one_node_is_called_what_the_user_calls_it_as_by_torchrun(name: str) -> None:
    assert address(master_addr=name) == name
    assert address(master_addr=name, local_addr="127.0.0.3") == "127.0.0.3"


@pytest.mark.parametrize("name", ["192.0.2.1", "no-such-host.invalid"])
def test_one_node_is_not_called_by_the_name_of_another_host(name: str) -> None:
    assert is_local_address(address(master_addr=name))


def test_nodes_that_meet_advertise_an_address() -> None:
    assert address(Endpoint("localhost", 5)) in ("127.0.0.1", "::1")


CAUSE = Failure(
    *(FailureKind.WORKER, 0, 0, 0, "gpu07", 7, 3, 1000),
    error_json=json.dumps({"message": {"message": "ValueError: a fault", "extraInfo": {}}}),
)


def put(kind: str, path: Path) -> None:
    """Put something at a path that no error can be written to."""
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif kind == "a loop of links":
        path.symlink_to(path)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("a FIFO", "a FIFO that nothing reads, or a socket"),
        ("a socket", "a FIFO that nothing reads, or a socket"),
        ("a directory", "Is a directory"),
        ("a loop of links", "Too many levels of symbolic links"),
        ("in no directory", "No such file or directory"),
    ],
)
def test_an_error_file_that_cannot_be_written_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
    reason: str,
) -> None:
    path = tmp_path / ("no/error" if kind == "in no directory" else "error")
    put(kind, path)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    pass_on_error_file(CAUSE)
    expected = f"ft-run: TORCHELASTIC_ERROR_FILE cannot be written: {str(path)!r}: {reason}\n"
    assert capfd.readouterr().err == expected


def test_a_fifo_that_is_read_receives_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(path := tmp_path / "error")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    pass_on_error_file(CAUSE)
    with open(reader) as file:
        assert json.load(file)["message"]["errorCode"] == 3
