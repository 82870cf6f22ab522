"""Tests of the bounds at a master's door: every number and text has one."""

import collections
import enum
import math
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from ft_run.protos import rendezvous_pb2 as pb
from ft_run.rendezvous.group.events import Close, Detached, GroupSettings, Received, Send, Tick
from ft_run.rendezvous.group.group import Group
from ft_run.rendezvous.master.job import Job
from ft_run.rendezvous.protocol import bounds
from ft_run.rendezvous.protocol.carried import CarriedValue, Proposal
from ft_run.rendezvous.protocol.check_messages import CheckResult, CheckSpec
from ft_run.rendezvous.protocol.claim import (
    Claim,
    ClaimState,
    NodeFailures,
    Past,
    PastProgress,
    Progress,
)
from ft_run.rendezvous.protocol.collectives import GroupCollectives, RankCollectives
from ft_run.rendezvous.protocol.drain_messages import Drained, Notice
from ft_run.rendezvous.protocol.failure import Failure, FailureKind
from ft_run.rendezvous.protocol.lease_messages import SuccessionSpec
from ft_run.rendezvous.protocol.messages import (
    Attend,
    Done,
    Failed,
    HangSpec,
    JobSpec,
    Leave,
    Loaded,
    MasterMessage,
    NodeMessage,
    NodeSpec,
    PolicySpec,
    Stopped,
)
from ft_run.rendezvous.protocol.offer import Offer, Replica, Snapshot, Snapshots
from ft_run.rendezvous.protocol.stacks import Frame, RankStack, RankState, StackReport, Suspicion
from ft_run.rendezvous.protocol.status import StatusReply
from ft_run.rendezvous.protocol.steps import RankSteps, StepsReport
from ft_run.rendezvous.transport import codec
from ft_run.rendezvous.work.messages import WorkClaim, WorkGrant, WorkReport
from ft_run.tests.harness.hostile import Hostile
from google.protobuf.message import DecodeError
from msgspec import StructMeta
from msgspec.structs import replace

CARRIED = (CarriedValue("a", 1, 1, 1),)
OFFER = Offer(
    "::1",
    1,
    Snapshots(0, "m", (Snapshot(1, 1, 0, True),), (Replica(1, 1, (0,)),)),
    carried=CARRIED,
)
FAILURE = Failure(FailureKind.WORKER, 0, 0, 0, "h", 1, 1, 0, proposal=Proposal("a", "b", CARRIED))
IMPATIENT = GroupSettings(last_call_timeout_s=0.0, node_grace_s=0.0, takeover_grace_s=1.0)
NO_BOUND = {"protocol"}
"""It is compared before anything else, and never kept."""

_CLAIM = WorkClaim("w", 1, 1, (0, 1), (1, 2))
MESSAGES: list[NodeMessage] = [
    Attend(
        protocol=1,
        version="1",
        job=JobSpec(
            "j", 1, 1, 1, 0, PolicySpec(("a",)), CheckSpec("light", 1.0, minimums=("a",)),
            hang=HangSpec(1.0, 1.0), succession=SuccessionSpec("a,b,c", 1.0, 1.0, 1.0, 1.0),
        ),
        node=NodeSpec("n", "i", "h", "::1", "r", 1, 0),
        offer=OFFER,
        claim=Claim(
            0, "m", 0, 1, 0, 0, "n", ClaimState.RUNNING, (FAILURE,),
            Past(
                (1,), ("a",), 1, (NodeFailures("a", (1,)),), PastProgress(1, 1), CARRIED
            ),
        ),
        leaving="x",
        claims=1,
    ),
    WorkReport(0, 1, _CLAIM, 1.0, 1, (_CLAIM,)),
    Failed(0, FAILURE),
    Done(0),
    Loaded(OFFER),
    Stopped(0, OFFER, Progress(1, True)),
    Leave("x"),
    StackReport(
        0,
        (
            RankStack(
                0, 0, "h", RankState.ANSWERED, (Frame("f", 1, "g", True, "s"),), 1, "r", 1, True,
                RankCollectives((GroupCollectives("0:dp", "0-7", 1, 1, "all_reduce"),), (1,), True),
            ),
        ),
    ),
    Suspicion(0, (0,), 1.0),
    StepsReport(0, (RankSteps(0, 1, 1.0, 1.0),), 1, 1.0),
    CheckResult(0, "", OFFER),
    Notice("x", 1.0),
    Drained(0, 1),
]  # fmt: skip


def with_too_much(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the value with one of its numbers or texts as large as the wire allows."""
    hints = typing.get_type_hints(type(value))
    for field in value.__struct_fields__:
        inner, hint = getattr(value, field), hints[field]
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            (hint,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        many = typing.get_origin(hint) is tuple
        if many:
            (hint, _) = typing.get_args(hint)
            yield field, replace(value, **{field: inner * 200_000})
        for name, odd in _odd_of(inner[0] if many else inner, hint, field):
            odd = (odd,) if many else odd
            yield name, replace(value, **{field: odd})


def _odd_of(value: Any, hint: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(hint, StructMeta):
        yield from with_too_much(value)
    elif hint is str:
        yield name, "x" * 300_000
    elif hint is int:
        bits = {"time_s": 64, "furthest": 63, "steps": 63, "step": 64, "term": 64, "clear": 64}
        bits |= {"checkpoint_step": 64, "size": 64, "grain": 64, "confirmed": 64, "held": 64}
        bits |= {"owner": 64, "generation": 64}
        yield name, 2 ** bits.get(name, 31) - 1
    elif hint is float:
        yield name, 1e308
    else:
        assert hint is bool or issubclass(hint, enum.Enum)


CASES = [
    pytest.param(odd, id=f"{type(message).__name__}-{name}-{number}")
    for message in MESSAGES
    for number, (name, odd) in enumerate(with_too_much(message))
    if name not in NO_BOUND
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_an_agent_says_is_taken(message: NodeMessage) -> None:
    bounds.check(message)


@pytest.mark.parametrize("message", CASES)
def test_every_number_and_text_is_bounded(message: NodeMessage) -> None:
    with pytest.raises(bounds.OutOfBounds, match="expected "):
        bounds.check(message)


@pytest.mark.parametrize("message", [Leave(""), Notice("", 1.0)])
def test_a_node_says_why_it_leaves(message: NodeMessage) -> None:
    with pytest.raises(bounds.OutOfBounds, match="reason is empty; expected the reason why"):
        bounds.check(message)


@pytest.mark.parametrize("name", ["node_id", "host", "address", "incarnation"])
def test_names_can_be_shown(name: str) -> None:
    attend = typing.cast(Attend, MESSAGES[0])
    node = replace(attend.node, **{name: "\x1b[2J"})
    with pytest.raises(
        bounds.OutOfBounds, match=rf"^{name} '\\x1b\[2J' has unprintable characters"
    ):
        bounds.check(replace(attend, node=node))


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"rescale_delay_s": -1.0}, "rescale_delay_s is -1; expected 0 to 1e+09"),
        ({"rescale_delay_s": math.nan}, "rescale_delay_s is nan; expected 0 to 1e+09"),
        ({"hang": HangSpec(-1.0, 1.0)}, "timeout_s is -1; expected 0 to 1e+09"),
        ({"hang": HangSpec(1.0, math.inf)}, "start_s is inf; expected 0 to 1e+09"),
        ({"checks": CheckSpec(timeout_s=math.inf)}, "timeout_s is inf; expected 0 to 1e+09"),
        (
            {"checks": CheckSpec(straggler_threshold=math.nan)},
            "straggler_threshold is nan; expected 0 to 1e+09",
        ),
        ({"policy": PolicySpec(restart_window_s=math.nan)}, "restart_window_s is nan; expected"),
        ({"policy": PolicySpec(backoff_max_s=-1.0)}, "backoff_max_s is -1; expected 0 to 1e+09"),
        (
            {"policy": PolicySpec(("oom=fail",) * 101)},
            "rules has 101 entries; expected at most",
        ),
    ],
)
def test_options_that_no_command_line_gives_are_refused(job: dict[str, Any], words: str) -> None:
    attend = typing.cast(Attend, MESSAGES[0])
    with pytest.raises(bounds.OutOfBounds, match=re.escape(words)):
        bounds.check(replace(attend, job=replace(attend.job, **job)))


def test_a_job_may_wait_forever_for_a_larger_world() -> None:
    attend = typing.cast(Attend, MESSAGES[0])
    job = replace(attend.job, rescale_delay_s=float("inf"))
    bounds.check(replace(attend, job=job))


def test_nothing_that_came_in_fails_to_go_out() -> None:
    """Thousands of odd words to one group after another; what it answers can be encoded."""
    hostile = Hostile(
        0,
        protocol=(1,), job_id=("j",), min_nodes=(2,), max_nodes=(3,), node_unit=(1,),
        max_restarts=(1, 3), level=("light",), on_restart=("node",), policy=(), checks=(),
        hang=(), succession=(),
        node_id=("a/0", "b/0", "c/0"), incarnation=("1", "2"), local_world_size=(1, 2),
        wanted_rank=(0, 1, 2), rules=("exit:3=fail",), minimums=(),
        separate_store=(False,), snapshots=(), leaving=("", "", "x"),
        restarts=(0, 1), nodes=(0, 2, 3), round=(0, 1, 2), rescale_delay_s=(5.0,), term=(0, 0, 3),
        ended=("", "", "x"), clear=(0, 0, 3),
    )  # fmt: skip
    taken, said = 0, collections.Counter[str]()
    for _ in range(120):
        rules, links, now = Job(Group(IMPATIENT, "m")), set[int](), 0.0
        group = rules.group
        for link in range(60):
            now += hostile.random.choice((0.0, 0.1, 1.0, 11.0))
            is_new = hostile.random.random() < 0.5 or not links
            number = link if is_new else hostile.random.choice(sorted(links))
            events: list[Any] = [Tick()]
            if hostile.random.random() < 0.1 and links:
                links.discard(gone := hostile.random.choice(sorted(links)))
                events.append(Detached(gone))
            try:
                message = codec.decode_node(hostile.message(*(("attend",) if is_new else ())))
                bounds.check(message)
            except (codec.WireError, DecodeError, bounds.OutOfBounds):
                pass
            else:
                if isinstance(message, Attend) == is_new:
                    links.add(number)
                    events.append(Received(number, message))
                    taken += 1
            while events:
                for command in rules.handle(events.pop(0), now):
                    if isinstance(command, Send):
                        codec.encode_master(command.message)
                        said[type(command.message).__name__] += 1
                    elif isinstance(command, Close) and command.link in links:
                        links.discard(command.link)
                        events.append(Detached(command.link))
            pb.StatusReply(round=group.round, restarts=group.state.restarts_in_budget)
    assert taken > 200
    assert min(said[name] for name in ("Start", "Stop", "Waiting", "Refused")) > 2, said


@pytest.mark.parametrize(
    "kind",
    [*typing.get_args(MasterMessage), WorkGrant, StatusReply, RankStack],
    ids=lambda kind: kind.__name__,
)
def test_every_field_of_a_message_of_the_master_has_bounds(kind: type) -> None:
    """Otherwise the first message of that kind would end the agent."""
    bounds._checks_of(kind)
