"""Tests of the entry point."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ft_run.launcher import main
from ft_run.launcher.commands import master, status


def test_the_agent_of_one_node_loads_no_large_library() -> None:
    options = ("--standalone", "--nproc-per-node", "1", "--no-python")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ft_run", *options, "true"],
        check=True,
        timeout=60,
        stderr=subprocess.PIPE,
        text=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "ft_run.launcher.agent.agent" in loaded
    large = {"cryptography", "google.protobuf", "grpc", "numpy", "rich", "torch"}
    assert not loaded & large


def test_launch_loads_no_grpc_before_it_forks() -> None:
    program = (
        "import sys\n"
        "import ft_run.launcher.commands.launch\n"
        "from ft_run.rendezvous.trust.source import TrustOptions, read_trust\n"
        "from ft_run.rendezvous.trust.token import new_token\n"
        "assert read_trust(TrustOptions(token=new_token())) is not None\n"
        "print({'grpc', 'google.protobuf', 'cryptography', 'torch'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"set()\n", b"")


@pytest.mark.parametrize(
    ("module", "function", "arguments"),
    [(master, "run_master", ["master"]), (status, "show_status", ["status"])],
)
def test_grpc_is_told_to_be_quiet_before_it_is_loaded(
    module: object, function: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    told = []

    def note(_: object) -> int:
        told.append(os.environ.get("GRPC_VERBOSITY"))
        return 0

    monkeypatch.setattr(module, function, note)
    assert main.main(arguments) == 0
    assert told == ["NONE"]
    monkeypatch.delenv("GRPC_VERBOSITY")


def test_no_words_show_the_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("Usage: ft-run [OPTIONS] SCRIPT [ARGS]...\n")
    assert "ft-run help COMMAND" in err


@pytest.mark.parametrize("flag", ["--log-dir=logs", "--events=events", "--tune-file=tuned"])
def test_relative_path_in_a_working_directory_that_is_gone_is_refused(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert main.main(["--no-python", flag, "true"]) == 2
    assert capfd.readouterr().err == (
        "ft-run: error: the working directory is gone; start ft-run in one that exists, "
        "or give absolute paths.\n"
    )


def test_another_missing_file_is_not_said_to_be_the_working_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> int:
        raise FileNotFoundError("lost")

    monkeypatch.setattr(status, "show_status", fail)
    with pytest.raises(FileNotFoundError, match="lost"):
        main.main(["status"])
