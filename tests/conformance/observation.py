"""What a user can observe of a run, as a flat mapping that can be compared key by key.

Ids, ports, paths and process ids are replaced by names, since they differ from run to run;
nothing else is.
"""

import importlib.util
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ft_run.tests.conformance.launchers import Launcher

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command

OWN_FILES = ("agent.log", "events.jsonl")
"""Files of ft-run itself in the folder of a run; documented as a difference from torchrun."""

NOTHING = "(nothing)"
"""The value of a fact that is not there."""

SAYS = "@@"
"""Stands in each line that a worker writes to standard error, which launchers write to as well."""

PROBE = r"""
import json, os, resource, signal, sys, time

rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
local_rank = int(os.environ.get("PROBE_LOCAL_RANK", os.environ["LOCAL_RANK"]))
folder = os.environ["PROBE_DIR"]

def say(text, file=sys.stdout):
    file.write(f"@@{text}\n")  # as one write, which no other worker's can tear

def together():
    # Or one of them may be stopped for another's failure before it has begun.
    os.makedirs(meeting := f"{folder}-together/{attempt}", exist_ok=True)
    open(f"{meeting}/{rank}", "w").close()
    while len(os.listdir(meeting)) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)

def report(**more):
    umask = os.umask(0)
    os.umask(umask)
    handlers = {s.name: signal.getsignal(s) for s in signal.Signals}
    handled = {name: str(what) for name, what in handlers.items() if what != signal.SIG_DFL}
    seen = {
        "env": dict(os.environ),
        "argv": sys.argv,
        "program": os.path.realpath(sys.executable),
        "name": __name__,
        "file": __file__,
        "path[0]": sys.path[0],
        "unbuffered": sys.stdout.write_through,
        "own session": os.getsid(0) == os.getpid(),
        "stdin": os.readlink("/proc/self/fd/0"),
        "files": sorted(fd for fd in map(int, os.listdir("/proc/self/fd")) if is_open(fd)),
        "umask": umask,
        "nice": os.nice(0),
        "signals": handled,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "cpus": sorted(os.sched_getaffinity(0)),
        "stack": resource.getrlimit(resource.RLIMIT_STACK),
        **more,
    }
    # A name of its own for each start, and whole as soon as it is there.
    number = sum(name.startswith(f"{rank}.{attempt}.") for name in os.listdir(folder))
    path = os.path.join(folder, f"{rank}.{attempt}.{number}")
    with open(path + "~", "w") as file:
        json.dump(seen, file)
    os.rename(path + "~", path)

def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True

report()
"""
"""Begins every worker script: writes what the worker sees to a file of ``PROBE_DIR``."""


@dataclass(frozen=True)
class Observation:
    """One run of a launcher: ``seen`` are its facts, by name."""

    seen: Mapping[str, object]

    def differences(self, other: "Observation") -> dict[str, tuple[object, object]]:
        """Return the facts that differ, each as it is here and there."""
        found: dict[str, tuple[object, object]] = {}
        for name in sorted({*self.seen, *other.seen}):
            here, there = self.seen.get(name, NOTHING), other.seen.get(name, NOTHING)
            whose = name.partition(":")[0]
            # Of a worker that was not started at all it is enough to say so.
            if here != there and (name == whose or whose not in found):
                found[name] = here, there
        return found


def observe(launcher: Launcher, commands: Sequence["Command"], job_id: str) -> Observation:
    """Return what is to be seen after ``commands``, one agent each, have ended.

    Args:
        launcher: what ran them, with ``probe``, ``logs`` and temporary files in its folder.
        commands: the agents.
        job_id: the id that the test gave to the job; empty where the launcher made one up.
    """
    normal = Normalizer(launcher, job_id)
    seen: dict[str, object] = {}
    for number, command in enumerate(commands):
        agent = f"agent {number}" if len(commands) > 1 else "agent"
        seen[f"{agent}: exit status"] = command.process.returncode
        seen[f"{agent}: stdout"] = sorted(normal.text(command.stdout).splitlines())
        workers, own = split(command.stderr)
        seen[f"{agent}: workers' stderr"] = sorted(normal.text(workers).splitlines())
        for name, value in failures(command.stderr).items():
            seen[f"{agent}: report: {name}"] = normal.text(value)
        seen[f"{agent}: traceback of the launcher"] = "Traceback (most" in own
        for name, event in _events(own):
            seen[f"{agent}: {name}"] = event
    for path in sorted((launcher.folder / "probe").iterdir()):
        worker = "worker {} attempt {} start {}".format(*path.name.split("."))
        seen[worker] = "started"
        report: dict[str, Any] = json.loads(path.read_text())
        env: dict[str, str] = report.pop("env")
        # What it has of the agent, unchanged, is not the launcher's doing.
        for name in sorted({*env, *launcher.given}):
            if env.get(name) != launcher.given.get(name):
                told = normal.variable(name, env[name]) if name in env else "(removed)"
                seen[f"{worker}: env {name}"] = told
        for name, value in report.items():
            seen[f"{worker}: {name}"] = normal.any(value)
    for top in (launcher.folder / "logs", launcher.temporary):
        for path in sorted(top.rglob("*")) if top.is_dir() else ():
            if path.name in OWN_FILES:
                continue
            name = normal.text(str(path))
            seen[f"file {name}"] = _content(path, normal)
    return Observation(seen)


class Normalizer:
    """Replaces what differs from run to run by names."""

    def __init__(self, launcher: Launcher, job_id: str) -> None:
        any_id = r"[0-9a-f-]{16,36}"
        run = f"{re.escape(job_id)}|{any_id}" if job_id else any_id
        # Of a temporary folder both launchers make one and the run's folder in it.
        torch = importlib.util.find_spec("torch")
        assert torch is not None
        assert torch.origin is not None
        self._rules = [
            (re.compile(rf"{re.escape(os.path.realpath(sys.executable))}\b"), "<python>"),
            (re.compile(re.escape(str(Path(torch.origin).parents[1]))), "<site-packages>"),
            (re.compile(re.escape(str(Path(sys.executable).parent)) + r"(?=[/\"]|$)"), "<bin>"),
            (re.compile(re.escape(str(launcher.temporary))), "<tmp>"),
            (re.compile(re.escape(str(launcher.folder))), "<dir>"),
            (re.compile(r"torchelastic_\w{8}\b"), "torchelastic_<random>"),
            (re.compile(rf"\b({run})_\w{{8}}\b"), "<run>"),
            (re.compile(rf"\b{launcher.port}\b"), "<port>"),
        ]
        self._made_up = re.compile(any_id)
        self._port = str(launcher.port)

    def text(self, text: str) -> str:
        for pattern, name in self._rules:
            text = pattern.sub(name, text)
        return text

    def any(self, value: Any) -> object:
        """Return a value of JSON with all of its texts normalised."""
        text: object = json.loads(self.text(json.dumps(value)))
        return text

    def variable(self, name: str, value: str) -> str:
        """Return a variable's value; one that can only be known afterwards is replaced."""
        if name == "MASTER_PORT" and value.isdecimal():
            return "<port>" if value == self._port else "<free port>"
        if name == "TORCHELASTIC_RUN_ID" and self._made_up.fullmatch(value):
            return "<id>"
        return self.text(value)


def _content(path: Path, normal: Normalizer) -> object:
    if path.is_dir():
        return "folder"
    text = path.read_text(errors="replace")
    if path.name != "error.json":
        return sorted(normal.text(text).splitlines(keepends=True))
    return re.sub(r'"timestamp": "?\d+"?', '"timestamp": <time>', normal.text(text))


_FIELD = re.compile(r"^  (time|host|rank|exitcode|error_file|traceback) *: (.*)$", re.MULTILINE)


def failures(stderr: str) -> dict[str, str]:
    """Return the fields of the failure report, in torchrun's form, that ``stderr`` holds."""
    begin = stderr.rfind("\nFailures:\n")
    if begin < 0:
        return {}
    others, root, rest = stderr[begin:].partition("Root Cause (first observed failure):")
    fields = {"title": stderr[:begin].rstrip("-\n").splitlines()[-1]}
    fields["others"] = "; ".join(
        f"{name}={value}" for name, value in _FIELD.findall(others) if name in ("rank", "exitcode")
    )
    fields["root"] = str(bool(root))
    fields |= _FIELD.findall(rest)
    fields.pop("time", None)
    return {
        # torchrun leaves space for the name of a signal where there is none.
        name: " ".join(re.sub(r"(pid: |PID )\d+", r"\1<pid>", value).split())
        for name, value in fields.items()
    }


def _events(own: str) -> Iterator[tuple[str, object]]:
    """Return the events of ``--event-log-handler console``, without times and process ids."""
    counts: Counter[str] = Counter()
    for line in own.splitlines():
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        fields = event["metadata"]
        details = json.loads(fields["metadata"])
        for unlike in ("run_id", "hostname", "rdzv_backend", "total_run_time", "raw_error"):
            del fields[unlike]
        for some in ("worker_id", "duration_ms"):
            fields[some] = fields[some] is not None
        details["entry_point"] = details["entry_point"].removesuffix("3")  # python, python3
        details["worker_pid"] = details.get("worker_pid", [None]) != [None]
        fields["metadata"] = details
        rank = fields["global_rank"]
        name = f"event {event['name']} of {'the agent' if rank is None else f'rank {rank}'}"
        counts[name] += 1
        yield f"{name}, {counts[name]}", event


_OWN_LINE = re.compile(r"\d\d:\d\d:\d\d ft-run ")
_REPORT = re.compile(r"^(Root cause: |=====)")


def split(stderr: str) -> tuple[str, str]:
    """Return what the workers and what the launcher wrote to ``stderr``, without the report."""
    lines = stderr.splitlines(keepends=True)
    report = next((i for i, line in enumerate(lines) if _REPORT.match(line)), len(lines))
    workers = [ln for ln in lines[:report] if SAYS in ln and not _OWN_LINE.match(ln)]
    own = [ln for ln in lines[:report] if ln not in workers]
    return "".join(workers), "".join(own)
