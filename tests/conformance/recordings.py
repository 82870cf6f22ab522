"""What torchrun does, recorded once for each version of torch and Python, and replayed.

``pytest --torchrun=record tests/conformance`` records anew, ``--torchrun=live`` runs torchrun and
compares it with what is recorded. Of versions that nothing is recorded of, torchrun is run. What
the torchrun that is installed is too old for is recorded of a newer one, in ``since-<version>``.

A recording is a file of ``recorded/``, to be read: what every worker sees stands once, what is
usual (``USUAL``) is left out, and what belongs to the machine has a name. It also says of what it
was made, so that it is not taken for another test's.
"""

import functools
import hashlib
import inspect
import json
import os
import re
import resource
import socket
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
from ft_run.tests.conformance import job, observation
from ft_run.tests.conformance.launchers import Surroundings
from ft_run.tests.conformance.observation import NOTHING, Observation
from ft_run.tests.conformance.points import Point
from ft_run.tests.conformance.row import Row

VERSIONS: Final = "torch-{}-python-{}.{}".format(
    version("torch").partition("+")[0], *sys.version_info[:2]
)
FOLDER: Final = Path(__file__).with_name("recorded") / VERSIONS
_TORCH: Final = tuple(map(int, version("torch").split(".")[:2]))

USUAL: Final[Mapping[str, object]] = {
    "": "started",
    "argv": ["<dir>/script.py"],
    "blocked": [],
    "cpus": "<all CPUs>",
    "env GROUP_RANK": "0",
    "env GROUP_WORLD_SIZE": "1",
    "env LOCAL_WORLD_SIZE": "2",
    "env MASTER_ADDR": "<host>",
    "env MASTER_PORT": "<port>",
    "env ROLE_NAME": "default",
    "env ROLE_WORLD_SIZE": "2",
    "env TORCHELASTIC_ERROR_FILE": "<tmp>/torchelastic_<random>/<run>/attempt_0/0/error.json",
    "env TORCHELASTIC_MAX_RESTARTS": "0",
    "env TORCHELASTIC_RESTART_COUNT": "0",
    "env TORCHELASTIC_RUN_ID": "<id>",
    "env TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "env TORCHELASTIC_USE_AGENT_STORE": "True",
    "env TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "env WORLD_SIZE": "2",
    "file": "<dir>/script.py",
    "files": [0, 1, 2],
    "name": "__main__",
    "nice": "<the test's>",
    "own session": True,
    "path[0]": "<dir>",
    "program": "<python>",
    "signals": {
        "SIGINT": "<built-in function default_int_handler>",
        "SIGPIPE": "1",
        "SIGXFSZ": "1",
    },
    "stack": "<the test's>",
    "stdin": "<dir>/input",
    "umask": "<the test's>",
    "unbuffered": True,
}
"""What a worker usually sees: only what differs from it is recorded."""


def mode(request: pytest.FixtureRequest, since: str = "") -> str:
    """Return how torchrun is to be had: what was asked for, or what there is for these versions.

    ``since`` is the first torch whose torchrun can be asked.
    """
    asked: str = request.config.getoption("--torchrun")
    if since and tuple(map(int, since.split("."))) > _TORCH:
        return "recorded"
    if asked == "recorded" and not FOLDER.exists():
        return "unrecorded"
    return asked


def digest(*texts: object) -> str:
    """Return a short name of what a recording was made of."""
    return hashlib.sha256("\0".join(map(str, texts)).encode("utf-8", "replace")).hexdigest()[:16]


def of_row(row: Row, *sources: object) -> str:
    """Return the digest of all that torchrun meets in a row; ``sources`` is what prepares it."""
    around = row.surroundings
    act = row.act and (inspect.getsource(row.act), inspect.getclosurevars(row.act).nonlocals)
    return digest(
        *(row.args, row.script, row.words, row.agents, sorted(row.env.items()), row.job_id),
        *(around.hostname, around.network, sorted(around.mounts.values())),
        *(around.ignored, around.prelude.get("torchrun"), act, observation.PROBE, *sources),
    )


def of_point(point: Point) -> str:
    """Return the digest of all that torchrun meets in a claim."""
    names = inspect.getclosurevars(point.claim).globals
    values = [names[name] for name in sorted(names) if isinstance(names[name], _VALUES)]
    return digest(inspect.getsource(point.claim), *values, inspect.getsource(job))


_VALUES: Final = (str, Mapping, Surroundings)


def load(name: str, of: str, since: str = "") -> dict[str, Any]:
    """Return a recording; fail the test unless it is one of the same thing."""
    path = path_of(name, since)
    recorded: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"of": "nothing"}
    if recorded.pop("of") != of:
        pytest.fail(
            f"{path.name} was recorded of something else, or never: record it with "
            "pytest --torchrun=record tests/conformance"
        )
    return recorded


def save(name: str, of: str, recorded: Mapping[str, object], since: str = "") -> None:
    """Write a recording."""
    path = path_of(name, since)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"of": of, **recorded}, indent=1, sort_keys=True)
    # What is short stands on one line.
    text = re.sub(r"\[\s+([^\[\]{}]{0,60}?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
    assert json.loads(text) == {"of": of, **recorded}
    path.write_text(text + "\n")


def path_of(name: str, since: str = "") -> Path:
    """Return the file of a recording."""
    folder = FOLDER.with_name(f"since-{since}") if since else FOLDER
    return folder / (re.sub(r"[^\w=-]+", " ", name).strip().replace(" ", "_") + ".json")


def recorded_form(seen: Observation) -> dict[str, Any]:
    """Return an observation of torchrun as it is recorded."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in seen.seen.items():
        whose, fact = _split(name)
        sections.setdefault(whose, {})[fact] = _named(fact, value)
    workers = {name: facts for name, facts in sections.items() if name.startswith("worker ")}
    for facts in workers.values():
        for fact, usual in USUAL.items():
            if facts.get(fact) == usual:
                del facts[fact]
            else:
                facts.setdefault(fact, NOTHING)
    if len(workers) > 1:
        first, *others = workers.values()
        everyone = {
            fact: value
            for fact, value in first.items()
            if all(other.get(fact, USUAL) == value for other in others)
        }
        for facts in workers.values():
            for fact in everyone:
                del facts[fact]
        sections["every worker"] = everyone
    assert replayed(sections).seen == seen.seen
    return sections


def replayed(recorded: Mapping[str, Mapping[str, Any]]) -> Observation:
    """Return the observation that was recorded, as it would be on this machine."""
    seen: dict[str, object] = {}
    everyone = recorded.get("every worker", {})
    for whose, facts in recorded.items():
        if whose == "every worker":
            continue
        usual = {**USUAL, **everyone} if whose.startswith("worker ") else {}
        for fact, value in {**usual, **facts}.items():
            if value != NOTHING:
                seen[_joined(whose, fact)] = _here(fact, value)
    return Observation(seen)


def _split(name: str) -> tuple[str, str]:
    if name.startswith("file "):
        return "files", name.removeprefix("file ")
    whose, _, fact = name.partition(": ")
    return whose, fact


def _joined(whose: str, fact: str) -> str:
    if whose == "files":
        return f"file {fact}"
    return f"{whose}: {fact}" if fact else whose


@functools.cache
def _machine() -> Mapping[str, Mapping[str, object]]:
    """Return the values that belong to this machine or this run of the tests, by fact and name."""
    cpus = sorted(os.sched_getaffinity(0))
    umask = os.umask(0)
    os.umask(umask)
    of_cpus = {"<all CPUs>": cpus, "<first CPU>": cpus[:1], "<other CPUs>": cpus[1:] or cpus}
    return {
        "cpus": of_cpus,
        "umask": {"<the test's>": umask},
        "nice": {"<the test's>": os.nice(0)},
        "stack": {"<the test's>": [*resource.getrlimit(resource.RLIMIT_STACK)]},
        "env MASTER_ADDR": {"<host>": socket.getfqdn()},
        "report: host": {"<host>": socket.getfqdn()},
    }


def _named(fact: str, value: object) -> object:
    """Return a value with a name in the place of what belongs to this machine."""
    return next((name for name, here in _machine().get(fact, {}).items() if here == value), value)


def _here(fact: str, value: object) -> object:
    """Return what a value that was recorded is on this machine."""
    return _machine().get(fact, {}).get(value, value) if isinstance(value, str) else value
