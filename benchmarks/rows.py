"""The rows of ``compare.py``: one scenario each, with one or more metrics."""

import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any

from figures import Target
from jobs import Job, JobResult, Launcher, Shape, environment, running_job
from procfs import cpu_s, helpers, marked, memory, wakeups

FOUR_AGENTS = Shape(agents=4, workers=1, nnodes="4")
_TOKEN = secrets.token_hex(32)
_WATCHED = ("--watch-workers",)
_MONITORED = (
    *(*_WATCHED, "--metrics", "0"),
    *("--events", "{folder}/e.jsonl", "--log-dir", "{folder}/logs"),
)
_STEPS = Path(__file__).with_name("steps.py")
_CALIBRATION_ROUNDS = 20_000


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations in seconds."""

    timeout_s: float = 180.0
    idle_s: float = 20.0
    """Time to observe an idle launcher."""
    settle_s: float = 2.0
    """Time before that for it to become idle."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a row."""

    key: str
    title: str
    unit: str
    target: Target | None = None


@dataclass(slots=True)
class Sample:
    """One run of a row under one launcher."""

    values: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    log: str = ""
    """The end of the launcher's output, if there are problems."""


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario."""

    key: str
    metrics: tuple[Metric, ...]
    measure: Callable[[Launcher, Settings], Sample]
    runs: int | None = None
    """Maximum number of runs, for rows that take minutes."""
    launchers: tuple[Launcher, ...] = tuple(Launcher)
    """Launchers that support it."""


def _start(shape: Shape) -> Callable[[Launcher, Settings], Sample]:
    def measure(launcher: Launcher, settings: Settings) -> Sample:
        with running_job(launcher, shape, "exit") as job:
            result = job.finish(attempts=1, timeout_s=settings.timeout_s)
        return _sample(result, 0, result.started_ns)

    return measure


def restart(shape: Shape) -> Callable[[Launcher, Settings], Sample]:
    """Measure from the death of a rank to the first lines of all restarted workers."""

    def measure(launcher: Launcher, settings: Settings) -> Sample:
        with running_job(launcher, shape, "die-once") as job:
            result = job.finish(attempts=2, timeout_s=settings.timeout_s)
        if result.death_ns is None:
            result.problems.append("rank 0 did not kill itself")
        return _sample(result, 1, result.death_ns)

    return measure


def _sample(result: JobResult, attempt: int, since_ns: int | None) -> Sample:
    sample = Sample(problems=result.problems, log=result.log)
    if not result.problems and since_ns is not None:
        sample.values = {"time": result.first_lines_s(attempt, since_ns)}
    return sample


def _spare(launcher: Launcher, settings: Settings) -> Sample:
    """Kill a worker, then an agent with its workers, which a spare replaces.

    Both are measured from the first SIGTERM of a worker, to exclude the configurable grace of a
    lost connection.
    """
    # Without is_host=false an agent might bind the endpoint before the master.
    conf = "is_host=false"
    shape = Shape(5, 1, spares=1, lone_master=True, nnodes="4", max_restarts=3, rdzv_conf=conf)
    times_s: list[float] = []
    victim = None
    with running_job(launcher, shape, "wait") as job:
        lines = job.wait_for_lines(4, settings.timeout_s)
        for attempt in (1, 2):
            time.sleep(settings.settle_s)  # let the launcher become idle
            if len(lines) != 4 * attempt:
                break
            told = len(job.told_ns())
            worker = next(ln.pid for ln in lines if (ln.attempt, ln.rank) == (attempt - 1, 3))
            if attempt == 2:
                victim = _agent_of(worker, job)
            os.kill(worker if victim is None else victim.pid, signal.SIGKILL)
            lines = job.wait_for_lines(4 * (attempt + 1), settings.timeout_s)
            last_ns = max(line.time_ns for line in lines)
            times_s += [(last_ns - since_ns) / 1e9 for since_ns in job.told_ns()[told : told + 1]]
        job.release()
        result = job.finish(attempts=3, timeout_s=settings.timeout_s, killed=victim)
    sample = Sample(problems=result.problems, log=result.log)
    if not result.problems and len(times_s) == 2:
        plain_s, spare_s = times_s
        sample.values = {"ratio": spare_s / plain_s, "spare": spare_s, "plain": plain_s}
    return sample


def _beside(
    measure: Callable[[Shape], Callable[[Launcher, Settings], Sample]],
    shape: Shape,
    other: Shape,
    key: str = "time",
) -> Callable[[Launcher, Settings], Sample]:
    """Measure two shapes, and the difference of a value; their order alternates."""
    orders = cycle([(shape, other), (other, shape)])  # the first job may warm up the machine

    def both(launcher: Launcher, settings: Settings) -> Sample:
        found = {one: measure(one)(launcher, settings) for one in next(orders)}
        plain, with_it = found[shape], found[other]
        sample = Sample(problems=plain.problems + with_it.problems, log=plain.log + with_it.log)
        if not sample.problems:
            before, after = plain.values[key], with_it.values[key]
            sample.values = {"more": after - before, "plain": before, "with": after}
            if before:
                sample.values["ratio"] = after / before
        return sample

    return both


def steps(step_us: int, count: int) -> Callable[[Shape], Callable[[Launcher, Settings], Sample]]:
    """Return what measures the median step of one worker in microseconds (``steps.py``)."""

    def of(shape: Shape) -> Callable[[Launcher, Settings], Sample]:
        def measure(launcher: Launcher, settings: Settings) -> Sample:
            rounds = int(step_us * _rounds_per_us())
            with tempfile.TemporaryDirectory(prefix="ft-run-bench-") as folder:
                options = ("--standalone", *shape.options(Path(folder)))
                done = subprocess.run(
                    [str(launcher.path), *options, str(_STEPS), str(rounds), str(count)],
                    env=environment() | {"LOGLEVEL": "WARNING"},
                    capture_output=True,
                    text=True,
                    timeout=settings.timeout_s,
                )
            if done.returncode:
                return Sample(problems=[f"exit code {done.returncode}"], log=done.stderr[-4000:])
            (line,) = [line for line in done.stdout.splitlines() if line.startswith("median ")]
            return Sample({"time": float(line.split()[1])})

        return measure

    return of


@lru_cache
def _rounds_per_us() -> float:
    """Return how many iterations of the loop in ``steps.py`` take a microsecond."""
    times = []
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(_CALIBRATION_ROUNDS):
            pass
        times.append(time.perf_counter() - started)
    return _CALIBRATION_ROUNDS / (min(times) * 1e6)


def _agent_of(worker: int, job: Job) -> "subprocess.Popen[bytes]":
    parents = marked(job.mark)
    agents = {agent.pid: agent for agent in job.agents}
    pid = worker
    while pid not in agents:
        pid = parents[pid]
    return agents[pid]


def idle(shape: Shape) -> Callable[[Launcher, Settings], Sample]:
    """Observe the launcher while its workers sleep; of several agents, take the maximum."""
    return _while_waiting(shape, _watch)


def _worker_memory(shape: Shape) -> Callable[[Launcher, Settings], Sample]:
    """Measure the memory of idle workers."""

    def sizes(job: Job, workers: set[int], _: Settings) -> dict[str, float]:
        return {
            "uss": sum(memory(pid).uss for pid in workers),
            "all": sum(memory(pid).pss for pid in marked(job.mark)),
        }

    return _while_waiting(shape, sizes)


def _while_waiting(
    shape: Shape, look: Callable[[Job, set[int], Settings], dict[str, float]]
) -> Callable[[Launcher, Settings], Sample]:
    """Return a measurement of a job whose workers sleep; ``look`` also gets their ids."""

    def measure(launcher: Launcher, settings: Settings) -> Sample:
        values: dict[str, float] = {}
        with running_job(launcher, shape, "wait") as job:
            workers = {ln.pid for ln in job.wait_for_lines(shape.world_size, settings.timeout_s)}
            time.sleep(settings.settle_s)  # let the launcher become idle
            if len(workers) == shape.world_size:
                values = look(job, workers, settings)
            job.release()
            result = job.finish(attempts=1, timeout_s=settings.timeout_s)
        return Sample({} if result.problems else values, result.problems, result.log)

    return measure


def _watch(job: Job, workers: set[int], settings: Settings) -> dict[str, float]:
    parents = marked(job.mark)
    agents = [agent.pid for agent in job.agents]
    families = {agent: [agent, *helpers(agent, workers, parents)] for agent in agents}

    def used(clock: Callable[[int], float]) -> list[float]:
        return [sum(map(clock, family)) for family in families.values()]

    started = time.monotonic()
    before = [used(clock) for clock in (cpu_s, wakeups)]
    time.sleep(settings.idle_s)
    after = [used(clock) for clock in (cpu_s, wakeups)]
    elapsed = time.monotonic() - started
    cpu, switches = (
        max(late - early for early, late in zip(earlier, later, strict=True)) / elapsed
        for earlier, later in zip(before, after, strict=True)
    )

    sizes = {agent: [memory(pid) for pid in family] for agent, family in families.items()}
    return {
        "rss": max(size[0].rss for size in sizes.values()),
        "pss": max(size[0].pss for size in sizes.values()),
        "all": max(sum(part.pss for part in size) for size in sizes.values()),
        "idle": 100 * cpu,
        "wakeups": switches,
    }


def _times(title: str, limit: float | None) -> tuple[Metric, ...]:
    target = None if limit is None else Target(limit, is_ratio=True)
    return (Metric("time", title, "s", target),)


def _idle_metrics(title: str) -> tuple[Metric, ...]:
    third, thousandth = Target(0.3, is_ratio=True), Target(0.1, is_ratio=False)
    return (
        Metric("rss", f"{title}: resident memory of the agent", "MiB", third),
        Metric("pss", "… the same, shared memory divided", "MiB"),
        Metric("all", "… with its helper processes, shared memory divided", "MiB", third),
        Metric("idle", f"{title}: idle CPU with its helpers", "%", thousandth),
    )


def _warm_rows() -> list[Row]:
    """Return the rows whose workers import torch, which ft-run preloads."""
    dies = "rank dies to torch imported in all restarted"
    return [
        Row(
            "warm-restart-1",
            _times(f"one node, 2 workers: {dies}", 0.12),
            restart(Shape(max_restarts=3, imports="torch")),
        ),
        Row(
            "warm-restart-4",
            _times(f"4 agents: {dies}", 0.03),
            restart(Shape(agents=4, workers=1, nnodes="4", max_restarts=3, imports="torch")),
        ),
        Row(
            "warm-start-8",
            _times("one node, 8 workers: command to torch imported in the last", 0.5),
            _start(Shape(workers=8, imports="torch")),
        ),
        Row(
            "warm-idle-8",
            (
                Metric(
                    "uss",
                    "8 idle workers with torch: unshared memory",
                    "MiB",
                    Target(0.4, is_ratio=True),
                ),
                Metric("all", "… all processes of the job, shared memory divided", "MiB"),
            ),
            _worker_memory(Shape(workers=8, imports="torch")),
            runs=2,
        ),
    ]


def _beside_rows() -> list[Row]:
    """Return the rows for a token and for three endpoints, each with and without."""
    two = Shape(agents=2, workers=1, nnodes="2")
    four = replace(FOUR_AGENTS, max_restarts=3)
    seconds = (Metric("plain", "… without", "s"), Metric("with", "… with", "s"))
    return [
        Row(
            "token-start-2",
            (
                Metric(
                    "more",
                    "2 agents: command to the last worker's first line, added by a token",
                    "s",
                    Target(0.08, is_ratio=False),
                ),
                *seconds,
            ),
            _beside(_start, two, replace(two, token=_TOKEN)),
            launchers=(Launcher.FT_RUN,),
        ),
        Row(
            "token-restart-4",
            (
                Metric(
                    "ratio",
                    "4 agents: rank dies to all restarted, with a token divided by without",
                    "x",
                    Target(1.03, is_ratio=False),
                ),
                *seconds,
            ),
            _beside(restart, four, replace(four, token=_TOKEN)),
            launchers=(Launcher.FT_RUN,),
        ),
        Row(
            "listed-restart-4",
            (
                Metric(
                    "ratio",
                    "4 agents: rank dies to all restarted, three endpoints divided by one",
                    "x",
                    Target(1.03, is_ratio=False),
                ),
                *seconds,
            ),
            _beside(restart, four, replace(four, endpoints=3)),
            launchers=(Launcher.FT_RUN,),
        ),
    ]


def _watching_rows() -> list[Row]:
    """Return the rows for workers that are watched, and for all monitoring; with and without."""
    what: tuple[tuple[str, str, str, Callable[[Shape], Any], str], ...] = (
        ("step-100us", "a step of about 100 us", "us", steps(100, 20_000), "time"),
        ("step-10ms", "a step of about 10 ms", "us", steps(10_000, 300), "time"),
        ("restart-1", "one node: rank dies to all restarted", "s", restart, "time"),
        ("idle-1", "idle agent and helpers: context switches", "/s", idle, "wakeups"),
    )
    plain = Shape(max_restarts=3)
    return [
        Row(
            f"{name}-{key}",
            (
                Metric("more", f"{title}, added by {by}", unit),
                Metric("plain", "… without", unit),
                Metric("with", "… with", unit),
            ),
            _beside(measure, plain, replace(plain, more=options), value),
            runs=2 if measure is idle else None,
            launchers=(Launcher.FT_RUN,),
        )
        for name, by, options in (
            ("watched", "--watch-workers", _WATCHED),
            ("monitored", "all monitoring", _MONITORED),
        )
        for key, title, unit, measure, value in what
    ]


def all_rows(last_call_s: float | None) -> list[Row]:
    """Return the rows in the order in which they are measured.

    Args:
        last_call_s: what the elastic row sets ``last_call_timeout`` to; None: the launchers'
            default, 30 s for both.
    """
    conf = "" if last_call_s is None else f"last_call_timeout={last_call_s:g}"
    elastic = Shape(agents=4, workers=1, nnodes="2:5", max_restarts=3, rdzv_conf=conf)
    dies = "rank dies to all restarted"
    return [
        Row(
            "start-1",
            _times("one node, 2 workers: command to the last worker's first line", 0.25),
            _start(Shape()),
        ),
        Row("restart-1", _times(f"one node: {dies}", 0.35), restart(Shape(max_restarts=3))),
        Row(
            "start-4",
            _times("4 agents on one host: command to the last worker's first line", 0.15),
            _start(FOUR_AGENTS),
        ),
        Row(
            "restart-4",
            _times(f"4 agents: {dies}", 0.04),
            restart(Shape(agents=4, workers=1, nnodes="4", max_restarts=3)),
        ),
        Row(
            "restart-elastic",
            # The target applies to the default last call only.
            _times(f"4 agents of 2:5: {dies}", 0.01 if last_call_s is None else None),
            restart(elastic),
            runs=2,
        ),
        Row(
            "spare-4",
            (
                Metric(
                    "ratio",
                    "4 agents and a spare: restart with the spare divided by a plain restart",
                    "x",
                    Target(2.0, is_ratio=False),
                ),
                Metric("spare", "… an agent is killed: detection to all running", "s"),
                Metric("plain", "… a rank dies: detection to all running", "s"),
            ),
            _spare,
            launchers=(Launcher.FT_RUN,),
        ),
        Row("idle-1", _idle_metrics("one node"), idle(Shape()), runs=2),
        Row(
            "idle-2",
            _idle_metrics("the larger of 2 agents"),
            idle(Shape(agents=2, workers=1, nnodes="2")),
            runs=2,
        ),
        *_warm_rows(),
        *_beside_rows(),
        *_watching_rows(),
    ]
