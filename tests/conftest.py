"""For all tests: on a machine that can run them all, none may be skipped."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

# As the launcher does before it loads gRPC, which would otherwise report every fork of a test's.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# gRPC would restart its threads in every process that a test forks. They use descriptors that a
# forked spawner has closed by then, and abort it. ft-run itself forks before it loads gRPC.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
import grpc  # noqa: F401 - reads the variable

del os.environ["GRPC_ENABLE_FORK_SUPPORT"]

# No test is about how long an example takes: on a busy machine any of them is slow.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say where torchrun's half of the conformance tests comes from."""
    parser.addoption(
        "--torchrun",
        choices=("recorded", "live", "record"),
        default="recorded",
        help="torchrun as it was recorded; run, and compared with that; run, and recorded anew",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Parallel runs hand out one test after the other, not a share of all in advance."""
    if getattr(config.option, "maxschedchunk", 1) is None:  # without pytest-xdist there is none
        config.option.maxschedchunk = 1
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        _compile_torch()


def _compile_torch() -> None:
    """Import torch once where nothing has yet, as where pip was told not to compile.

    Each process of the first tests would compile what it imports, which takes ten seconds of a
    processor, and no import of torch that comes before the first has ended is spared that.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None or sys.dont_write_bytecode:
        return
    if not Path(importlib.util.cache_from_source(spec.origin)).exists():
        modules = "torch, torch._dynamo, torch.distributed.checkpoint, torch.distributed.fsdp"
        modules += ", torch.distributed.tensor.parallel"
        subprocess.run([sys.executable, "-c", f"import {modules}"], check=False)
        subprocess.run([sys.executable, "-c", "import sklearn.datasets"], check=False)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long; leave out what is slow or needs more than this machine."""
    if getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("long") is None)
    left_out = []
    if "gpu" not in config.option.markexpr and not any("tests/gpu" in arg for arg in config.args):
        left_out += [item for item in items if item.get_closest_marker("gpu")]
    if not os.environ.get("FT_RUN_KUBERNETES_IMAGE"):
        left_out += [item for item in items if item.get_closest_marker("kubernetes")]
    if not os.environ.get("FT_RUN_SLOW") and "slow" not in config.option.markexpr:
        left_out += [item for item in items if item.get_closest_marker("slow")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so, loudly, when tests were skipped where that is forbidden."""
    if _forbidden(terminalreporter):
        terminalreporter.write_line(
            "FT_RUN_FORBID_SKIPS is set and tests were skipped: that is a failure.", red=True
        )
    _tell_conformance(terminalreporter)
    _tell_times(terminalreporter)


def _tell_conformance(reporter: pytest.TerminalReporter) -> None:
    """Say how many rows are the same as torchrun's, better, or different on purpose.

    Here, since of parallel runs only this file is known to the process that prints.
    """
    verdicts = _properties(reporter, "conformance")
    if verdicts:
        counts = ", ".join(f"{verdicts.count(name)} {name}" for name in sorted({*verdicts}))
        reporter.write_line(f"conformance with torchrun: {len(verdicts)} rows: {counts}")


def _tell_times(reporter: pytest.TerminalReporter) -> None:
    """Say how soon the faults of this run were noticed: no test asserts it."""
    for name in ("gpu", "kubernetes"):
        for line in _properties(reporter, name):
            reporter.write_line(f"{name}: {line}")
    times = _properties(reporter, "detection time")
    if times:
        reporter.section("detection times")
        for line in sorted(times):
            reporter.write_line(line)


def _properties(reporter: pytest.TerminalReporter, wanted: str) -> list[str]:
    """Return what tests that passed have recorded under a name, also on other processes."""
    return [
        str(value)
        for report in reporter.getreports("passed")
        for name, value in report.user_properties
        if name == wanted
    ]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when tests were skipped where that is forbidden."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and _forbidden(reporter) and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _forbidden(reporter: pytest.TerminalReporter) -> bool:
    return bool(os.environ.get("FT_RUN_FORBID_SKIPS") and reporter.stats.get("skipped"))
