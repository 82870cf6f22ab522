"""Plays a script of events against the group's rules, and writes down what is said.

The notation is explained in ``tests/rendezvous/transcripts/README.md``.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from ft_run import exit_codes
from ft_run.events.master import MasterEvent
from ft_run.rendezvous.group.events import (
    Close,
    Detached,
    Event,
    Finish,
    GroupSettings,
    Hung,
    Received,
    Send,
    Tick,
)
from ft_run.rendezvous.group.examination import CheckStep, Conclusion, NodeFinding
from ft_run.rendezvous.group.group import Group
from ft_run.rendezvous.master.job import Job
from ft_run.rendezvous.protocol.check_messages import CheckSpec
from ft_run.rendezvous.protocol.claim import Claim, ClaimState, Past
from ft_run.rendezvous.protocol.failure import hung
from ft_run.rendezvous.protocol.messages import JobSpec, NodeSpec, PolicySpec
from ft_run.rendezvous.work.messages import WorkClaim
from ft_run.rendezvous.work.node_work import Taker
from ft_run.tests.harness.simulated_agent import BROKEN, Agent, Stream
from ft_run.tests.harness.transcript_words import words
from msgspec.structs import replace

_MOST_TICKS = 1000


class Exam:
    """An examination in one step in which all meet; nodes say in words what came of it."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = tuple(nodes)
        self._is_begun = False
        self._said: dict[str, str] = dict.fromkeys(nodes, "it was not reached")

    def next_step(self, _remaining_s: float) -> CheckStep | None:
        """All meet, once."""
        if self._is_begun:
            return None
        self._is_begun = True
        return CheckStep("meet", (self._nodes,), 10.0)

    def answered(self, node_id: str, report: str, _took_s: float) -> None:
        """Take a node's words."""
        self._said[node_id] = report

    def silent(self, node_id: str, why: str) -> None:
        """That is a failure."""
        self._said[node_id] = why

    def lost(self, node_id: str) -> None:
        """That says nothing."""
        self._said.pop(node_id, None)

    def conclude(self) -> Conclusion:
        """``ok`` and a bad link are no fault of one node; all else is."""
        links = [
            (name, said.removeprefix("bad link to "))
            for name, said in self._said.items()
            if said.startswith("bad link to ")
        ]
        bad = {
            name: said for name, said in self._said.items() if not said.startswith(("ok", "bad "))
        }
        findings = {
            name: NodeFinding(
                exit_codes.NODE_EXCLUDED if name in bad else 0, bad.get(name, ""), True
            )
            for name in self._said
        }
        good = len(self._said) - len(bad)
        return Conclusion(findings, tuple(links), f"{good} of {len(self._said)} nodes passed", "")


class Transcript:
    """The world of one script: agents, one master at a time, a clock."""

    def __init__(self, job: JobSpec, settings: GroupSettings, *, saves: bool) -> None:
        self._job, self._settings, self._saves = job, settings, saves
        self._now = 0.0
        self._lines: list[str] = []
        self._agents: dict[str, Agent] = {}
        self._streams: dict[int, Stream] = {}
        self._said: dict[str, tuple[int, Any]] = {}
        self._late: dict[str, list[Any]] = {}
        """Claims that are on their way."""
        self._ports = 5000
        self._masters = 0
        self._group: Group | None = None
        self._new_master()

    def play(self, line: str) -> list[str]:
        """Let one event happen; return what is said because of it."""
        self._lines = []
        for pattern, action in _EVENTS.items():
            if found := re.fullmatch(pattern, line):
                action(self, *found.groups())
                self._settle()
                return self._lines
        raise ValueError(f"no event is written like this: {line!r}")

    def begin_round(self, names: str) -> None:
        """Have nodes start, and the first round run."""
        for name in names:
            self._start(name, None)
            self._settle()
        if names and self._group is not None and self._group.round < 0:
            self._pass("30")

    # --- what happens ------------------------------------------------------------------------

    def _new_master(self) -> None:
        self._masters += 1
        self._group = Group(
            self._settings, f"master-{self._masters}", lambda _spec, nodes, _passed: Exam(nodes)
        )
        self._rules = Job(self._group)

    def _kill_master(self) -> None:
        self._group = None
        for stream in self._streams.values():
            stream.cut(0, 0)
            stream.up.clear()

    def _start(self, name: str, options: str | None) -> None:
        given = dict(part.split("=") for part in shlex.split(options or ""))
        pin, claimed = given.pop("node-rank", None), given.pop("claim", None)
        number = ord(name[0]) - ord("a")
        spec = NodeSpec(
            node_id=name.rstrip("'"),
            incarnation=name,
            host=f"host-{name[0]}",
            address=f"10.0.0.{number + 1}",
            role="default",
            local_world_size=1,
            wanted_rank=None if pin is None else int(pin),
        )
        spec = replace(
            spec,
            node_id=given.pop("id", spec.node_id),
            address=given.pop("ip", spec.address),
            segment=given.pop("segment", ""),
        )
        job = replace(self._job, **{key: _OPTIONS[key](value) for key, value in given.items()})
        self._agents[name] = Agent(
            spec, job, self._port, lambda: self._now, repeats_leave=True, saves=self._saves
        )
        if claimed is not None:
            last, restarts, *excluded = claimed.split(",")
            past, state = Past(excluded=tuple(excluded)), ClaimState.STOPPED
            claim = Claim(int(last), "another", int(restarts), 1, 0, 0, "", state, past=past)
            self._agents[name].pretend(claim)
        self._connect(name)

    def _connect(self, name: str, late: str | None = None) -> None:
        stream = self._agents[name].attend(len(self._streams) + 1)
        self._streams[stream.number] = stream
        if late:
            attend, *self._late[name] = stream.up
            stream.up.clear()
            stream.up.append(attend)

    def _claims_arrive(self, name: str) -> None:
        stream = self._agents[name].stream
        assert stream is not None
        stream.up.extend(self._late.pop(name))

    def _disconnect(self, name: str) -> None:
        stream = self._agents[name].stream
        assert stream is not None
        stream.cut(0, 0)

    def _kill(self, name: str) -> None:
        agent = self._agents[name]
        agent.kill()
        if agent.stream is not None:
            agent.stream.cut(0, 0)

    def _freeze(self, name: str, is_frozen: bool) -> None:
        self._agents[name].is_frozen = is_frozen

    def _hang(self, name: str) -> None:
        agent, group = self._agents[name], self._group
        assert agent.assignment is not None
        assert group is not None
        rank = agent.assignment.node_rank
        where = f"rank {rank} on node {rank} ({agent.spec.host})"
        failure = hung(rank, agent.spec.host, "", f"{where} hangs in read() at dataset.py:41")
        self._handle(Hung(group.round, failure, ""))

    def _drain(self, name: str, step: str) -> None:
        agent = self._agents[name]
        agent.drains_at, agent.steps = int(step), int(step) - 1
        agent.take_snapshot()

    def _ask(self, name: str, work: str, size: str) -> None:
        agent = self._agents[name]
        assert agent.assignment is not None
        taker = Taker(agent.assignment.rank_offset, 0)
        agent.ask(taker, WorkClaim(work, int(size), 1))

    def _leave_loop(self, name: str, work: str) -> None:
        for taker in list(self._agents[name].pieces):
            self._agents[name].leave_loop(taker, WorkClaim(work, 1, 1))

    def _repeat(self, name: str, text: str) -> None:
        number, message = self._said[f"{name} {text}"]
        self._received(number, message)

    def _pass(self, seconds: str) -> None:
        until = self._now + float(seconds)
        for _ in range(_MOST_TICKS):
            deadline = self._group.deadline() if self._group is not None else None
            if deadline is None or deadline > until:
                self._now = until
                return
            waited_s = max(0.0, deadline - self._now)
            self._now = max(self._now, deadline)
            mark = len(self._lines)
            self._handle(Tick())
            self._settle()
            if waited_s and len(self._lines) > mark:
                self._lines.insert(mark, f"(at {self._now:g} s)")
        raise AssertionError("time does not pass")

    def _port(self) -> int:
        self._ports += 1
        return self._ports

    # --- what is said ------------------------------------------------------------------------

    def _settle(self) -> None:
        """Deliver all messages, in both directions."""
        while stream := next((s for s in self._streams.values() if self._has_news(s)), None):
            if self._group is not None and stream.up:
                message: Any = stream.up.popleft()
                if message is BROKEN:
                    self._handle(Detached(stream.number))
                else:
                    self._received(stream.number, message)
            else:
                stream.agent.receive(stream, stream.down.popleft())

    def _has_news(self, stream: Stream) -> bool:
        is_up = self._group is not None and bool(stream.up)
        return is_up or (bool(stream.down) and not stream.agent.is_frozen)

    def _received(self, number: int, message: Any) -> None:
        name = self._streams[number].agent.spec.incarnation
        text = words(message, self._job)
        self._said[f"{name} {text}"] = (number, message)
        self._lines.append(f"{name} -> {text}")
        self._handle(Received(number, message))

    def _handle(self, event: Event) -> None:
        assert self._group is not None
        for command in self._rules.handle(event, self._now):
            match command:
                case Send(link, message):
                    stream = self._streams[link]
                    stream.send_down(message)
                    self._lines.append(
                        f"{stream.agent.spec.incarnation} <- {words(message, self._job)}"
                    )
                case Close(link):
                    stream = self._streams[link]
                    stream.end_down()
                    stream.end_up()
                    self._lines.append(f"{stream.agent.spec.incarnation} <- (end of stream)")
                case MasterEvent():
                    self._lines.append(str(command))
                case Finish():
                    self._lines.append("master: ends")


_NAME = r"([a-z]'*)"
_EVENTS: dict[str, Callable[..., None]] = {
    rf"{_NAME} starts(?: with (.+))?": Transcript._start,
    rf"{_NAME} loses its connection": Transcript._disconnect,
    rf"{_NAME} connects again(, its claims are late)?": Transcript._connect,
    rf"the claims of {_NAME} arrive": Transcript._claims_arrive,
    rf"{_NAME} is killed": Transcript._kill,
    rf"{_NAME} hangs": lambda self, name: self._freeze(name, True),
    rf"{_NAME} wakes": lambda self, name: self._freeze(name, False),
    rf"a worker of {_NAME} exits with (\d+)": lambda self, name, code: self._agents[name].fail(
        exit_code=int(code)
    ),
    rf"{_NAME} runs out of memory in a part of (\d+)": lambda self, name, n: self._agents[
        name
    ].fail(samples=int(n)),
    rf"the worker of {_NAME} is found to hang": Transcript._hang,
    rf"the workers of {_NAME} are dead": lambda self, name: self._agents[name].finish_stop(),
    rf"the workers of {_NAME} exit with 0": lambda self, name: self._agents[name].finish(),
    rf"rank 0 on {_NAME} exits with 0": lambda self, name: self._agents[name].finish_rank0(),
    rf"{_NAME} will be gone in ([\d.]+) s": lambda self, name, s: self._agents[name].give_notice(
        float(s)
    ),
    rf"the workers of {_NAME} leave the state of step (\d+)": Transcript._drain,
    rf"the worker of {_NAME} (?:asks for|has done) a piece of (\w+) of (\d+)": Transcript._ask,
    rf"the worker of {_NAME} leaves its loop of (\w+)": Transcript._leave_loop,
    rf"the clock of {_NAME} strikes": lambda self, name: self._agents[name].work.tick(self._now),
    rf"{_NAME} gets SIGTERM": lambda self, name: self._agents[name].leave(),
    rf"{_NAME} has checked: (.+)": lambda self, name, text: self._agents[name].finish_check(text),
    rf"{_NAME} -> (.+) comes again": Transcript._repeat,
    r"([\d.]+) s pass": Transcript._pass,
    r"the master is killed": Transcript._kill_master,
    r"a new master starts": Transcript._new_master,
}

_OPTIONS: dict[str, Callable[[str], Any]] = {
    "job_id": str,
    "min_nodes": int,
    "max_nodes": int,
    "node_unit": int,
    "max_restarts": int,
}


def begin(line: str) -> Transcript:
    """Begin with the options that the ``job`` line of a script stands for."""
    given = dict(part.split("=", 1) for part in shlex.split(line)[1:])
    saves = given.pop("checkpointer", "yes") == "yes"
    running = given.pop("running", "")
    low, _, high = given.pop("nodes").partition(":")
    policy = PolicySpec(
        rules=tuple(filter(None, given.pop("rules", "").split(","))),
        backoff_first_s=float(given.pop("backoff", "0").partition(":")[0]),
        backoff_max_s=float(given.pop("backoff_max", "0")),
        rank0_decides=given.pop("success", "all") == "rank0",
    )
    checks = CheckSpec("light", 60.0) if given.pop("checks", "no") == "yes" else None
    times: dict[str, Any] = {key: float(text) for key, text in given.items() if "_s" in key}
    settings = GroupSettings(**times)
    values = {key: _OPTIONS[key](value) for key, value in given.items() if "_s" not in key}
    job = JobSpec("job", int(low), int(high or low), 1, 3, policy, checks)
    transcript = Transcript(replace(job, **values), settings, saves=saves)
    transcript.begin_round(running)
    return transcript


def perform(script: str) -> str:
    """Return a script with what is said after each event, whatever it says there now."""
    written: list[str] = []
    play: Transcript | None = None
    for line in script.splitlines():
        if line.startswith("  "):
            continue
        written.append(line)
        if line.startswith("job "):
            play = begin(line)
        elif line and not line.startswith("#"):
            assert play is not None, "the first event is before the job"
            written += [f"    {said}" for said in play.play(line)]
    return "\n".join(written) + "\n"
