"""Plays a script of faults in the world of ``world``, and writes down what becomes of it.

The notation is explained in ``tests/rendezvous/lease/traces/README.md``.
"""

import random
import re
from collections.abc import Callable

from ft_run.rendezvous.lease.times import LeaseTimes
from ft_run.rendezvous.protocol.lease_messages import LeaseStep
from ft_run.tests.harness.lease.world import Host, World, job_of

_LATENCY_S = 0.005
_STEP_S = 0.001
_LONGEST_S = 100.0


class LeaseTranscript:
    """The world of one script: three hosts are listed, the clocks agree."""

    def __init__(self, smallest: int, largest: int, names: str) -> None:
        self._world = World(
            job_of(smallest, largest),
            LeaseTimes(silence_s=3.9),
            listed=3,
            chance=random.Random(1),
            latency=lambda: _LATENCY_S,
        )
        self._hosts = {name: self._world.add_host(name) for name in names}

    def play(self, line: str) -> list[str]:
        """Let one event happen; return what comes of it."""
        self._world.said.clear()
        for pattern, action in _EVENTS.items():
            if found := re.fullmatch(pattern, line):
                action(self, *found.groups())
                return [text for text in self._world.said if not text.endswith(_AS_SAID)]
        raise ValueError(f"no event is written like this: {line!r}")

    def _host(self, name: str) -> Host:
        return self._hosts[name]

    def _start(self, names: str) -> None:
        for name in names.split():
            self._world.start(self._host(name))

    def _run(self, names: str) -> None:
        self._start(names)
        self._until("starts workers of round 0")
        self._world.said.clear()

    def _start_masters(self, names: str) -> None:
        for name in names.split():
            self._host(name).is_node = False
        self._start(names)

    def _pass(self, seconds: str) -> None:
        self._world.run_until(self._world.now + float(seconds))

    def _until(self, text: str) -> None:
        end = self._world.now + _LONGEST_S
        while not any(text in said for said in self._world.said):
            self._world.run_until(self._world.now + _STEP_S)
            if self._world.now > end:
                raise ValueError(f"this does not happen: {text!r}")

    def _cut(self, sides: str) -> None:
        groups = [[self._host(name) for name in side.split()] for side in sides.split("|")]
        for group in groups:
            for one in group:
                for other in self._world.hosts:
                    if other not in group and any(other in side for side in groups):
                        self._world.block(one, other)
        self._world.look()

    def _cut_one_way(self, one: str, other: str) -> None:
        self._world.block(self._host(one), self._host(other))
        self._world.look()

    def _heal(self) -> None:
        self._world.heal()

    def _kill(self, name: str) -> None:
        self._world.kill(self._host(name))

    def _power_off(self, name: str) -> None:
        self._world.power_off(self._host(name))

    def _freeze(self, name: str) -> None:
        self._world.freeze(self._host(name))

    def _thaw(self, name: str) -> None:
        self._world.thaw(self._host(name))

    def _forge(self, name: str, number: str) -> None:
        self._world.forge(self._host(name), LeaseStep.PREPARE, int(number))

    def _forge_term(self, name: str, term: str) -> None:
        self._world.forge_term(self._host(name), int(term))

    def _fail(self, name: str) -> None:
        process = self._host(name).process
        assert process is not None
        process.agent.fail()

    def _terminate(self, name: str) -> None:
        process = self._host(name).process
        assert process is not None
        process.agent.leave()


_AS_SAID = (" starts",)
_EVENTS: dict[str, Callable[..., None]] = {
    r"start masters ([a-z ]+)": LeaseTranscript._start_masters,
    r"start ([a-z ]+)": LeaseTranscript._start,
    r"round 0 runs on ([a-z ]+)": LeaseTranscript._run,
    r"([0-9.]+) s pass": LeaseTranscript._pass,
    r"until (.+)": LeaseTranscript._until,
    r"cut ([a-z ]+(?:\|[a-z ]+)+)": LeaseTranscript._cut,
    r"what ([a-z]) sends no longer reaches ([a-z])": LeaseTranscript._cut_one_way,
    r"heal": LeaseTranscript._heal,
    r"([a-z]) is killed": LeaseTranscript._kill,
    r"([a-z]) loses its power": LeaseTranscript._power_off,
    r"([a-z]) freezes": LeaseTranscript._freeze,
    r"([a-z]) thaws": LeaseTranscript._thaw,
    r"a stranger asks ([a-z]) with number (\d+)": LeaseTranscript._forge,
    r"a stranger says to ([a-z]) that it has followed term (\d+)": LeaseTranscript._forge_term,
    r"a worker of ([a-z]) fails": LeaseTranscript._fail,
    r"([a-z]) gets SIGTERM": LeaseTranscript._terminate,
}
_JOB = re.compile(r"job nodes=(\d+)(?::(\d+))? hosts=([a-z]+)")


def perform(script: str) -> str:
    """Play a script; return it with what came of each event below it."""
    performed: list[str] = []
    world: LeaseTranscript | None = None
    for line in script.splitlines():
        if line.startswith("    "):
            continue
        performed.append(line)
        if not line or line.startswith("#"):
            continue
        if world is None:
            found = _JOB.fullmatch(line)
            if found is None:
                raise ValueError(f"no job is written like this: {line!r}")
            smallest, largest, names = found.groups()
            world = LeaseTranscript(int(smallest), int(largest or smallest), names)
            continue
        performed += [f"    {said}" for said in world.play(line)]
    return "\n".join(performed) + "\n"
