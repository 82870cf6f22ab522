"""Bounds of what nodes say. Pure.

A master takes nothing that it could not send on, keep or show: every number and every text is
looked at when it comes in. The bounds are far above what an agent sends. What the texts of one
message may come to in all is bounded by ``MAX_MESSAGE_BYTES`` of ``channel_options``.
"""

import math
from collections.abc import Iterable

from ... import defaults
from .check_messages import CheckResult
from .drain_messages import Drained, Notice
from .failure import Failure
from .lease_messages import NO_HOST, LeaseAnswer, LeaseAsk, SuccessionSpec
from .messages import (
    Attend,
    Claim,
    Done,
    Failed,
    JobSpec,
    Leave,
    NodeMessage,
    NodeSpec,
    Past,
    Progress,
    Stopped,
)
from .offer import STEP_MAX, Offer, Snapshots
from .stacks import FRAMES_MAX, TEXT_MAX, RankStack, StackReport, Suspicion
from .steps import RATE_MAX, STEPS_MAX, StepsReport

COUNT_MAX = 999_999_999
"""As on the command line. A few steps more still fit any field of a message."""
BALLOT_MAX = 2**62
"""Of numbers and terms of leases: in steps of ``acceptor._JUMP_MAX`` they are never used up."""
AGE_MAX_S = 999_999_999
"""Some thirty years; two of them still fit an unsigned field."""
TIME_MAX_S = 99_999_999_999
"""The year 5138: what is later cannot be shown as a date."""
LOCAL_WORLD_SIZE_MAX = 65_536
EXIT_CODE_MAX = 255
PORT_MAX = 65_535

NAME_MAX_CHARS = 512
"""Of names: a host name has at most 253 characters."""
TEXT_MAX_CHARS = 4_096
"""Of sentences, paths and rules."""
REPORT_MAX_CHARS = 256 * 1024
"""Of what one node has measured in a step of the checks: a few kB."""

RULES_MAX = 1_000
AGES_MAX = 10_000
"""Restarts that are remembered of a node, or of the job within its window."""
NODES_MAX = 100_000
SNAPSHOTS_MAX = 8
"""Of one node: the newest, the one before, and those that replicas belong to."""
SECONDS_MAX = 1e9
"""As on the command line."""


class OutOfBounds(Exception):  # noqa: N818 - the sentence reads so
    """Raised for what no agent sends; the text is one sentence."""


def check(message: NodeMessage) -> None:
    """Look at every number and text of what a node has said.

    Raises:
        OutOfBounds: one is not within its bounds.
    """
    match message:
        case Attend():
            _attend(message)
        case Failed(round_number, failure):
            _number("round", round_number)
            _failure(failure)
        case Stopped(round_number, offer, progress):
            _number("round", round_number)
            _offer(offer)
            if progress is not None:
                _progress(progress)
        case Done(round_number):
            _number("round", round_number)
        case Leave(reason):
            _reason(reason)
        case Notice(reason, seconds):
            _reason(reason)
            _span("seconds", seconds, SECONDS_MAX)
        case Drained(round_number, step):
            _number("round", round_number)
            _number("step", step, -1, STEP_MAX)
        case CheckResult(number, report, offer):
            _number("number", number)
            _text("report", report, REPORT_MAX_CHARS)
            _offer(offer)
        case StackReport(number, stacks):
            _number("number", number)
            _length("stacks", len(stacks), LOCAL_WORLD_SIZE_MAX)
            for stack in stacks:
                _stack(stack)
        case Suspicion(round_number, ranks, idle_s):
            _number("round", round_number)
            _length("ranks", len(ranks), LOCAL_WORLD_SIZE_MAX)
            for rank in ranks:
                _number("rank", rank)
            _span("idle_s", idle_s, SECONDS_MAX)
        case StepsReport(number, workers):
            _number("number", number)
            _length("workers", len(workers), LOCAL_WORLD_SIZE_MAX)
            for worker in workers:
                _number("rank", worker.rank)
                _number("steps", worker.steps, 0, STEPS_MAX)
                _span("steps_per_s", worker.steps_per_s, RATE_MAX)
                _span("idle_s", worker.idle_s, SECONDS_MAX)


def check_lease(message: LeaseAsk | LeaseAnswer, hosts: int) -> None:
    """Look at what another of so many listed hosts has said; raises as ``check``."""
    if isinstance(message, LeaseAsk):
        _number("host", message.host, 0, hosts - 1)
        _name("process", message.process)
        _number("number", message.number, 0, BALLOT_MAX)
        _number("term", message.term, 0, message.number)
        _number("lease_ms", message.lease_ms)
        _number("round_term", message.round_term, 0, message.term)
        _number("exit_code", message.exit_code, -EXIT_CODE_MAX, EXIT_CODE_MAX)
    else:
        _number("highest", message.highest, 0, BALLOT_MAX)
        _number("round_term", message.round_term, 0, BALLOT_MAX)
        _number("host", message.host, NO_HOST, hosts - 1)
    _number("round", message.round, -1)


def _stack(stack: RankStack) -> None:
    _number("rank", stack.rank)
    _number("node_rank", stack.node_rank, least=-1)
    _number("steps", stack.steps, least=-1)
    _number("ticks", stack.ticks)
    _text("host", stack.host, NAME_MAX_CHARS)
    _text("remark", stack.remark, TEXT_MAX)
    _length("frames", len(stack.frames), FRAMES_MAX)
    for frame in stack.frames:
        _number("line", frame.line)
        _text("file", frame.file, TEXT_MAX)
        _text("function", frame.function, TEXT_MAX)
        _text("source", frame.source, TEXT_MAX)


def _attend(attend: Attend) -> None:
    _name("version", attend.version)
    _job(attend.job)
    _node(attend.node)
    _offer(attend.offer)
    if attend.claim is not None:
        _claim(attend.claim)
    _text("leaving", attend.leaving, NAME_MAX_CHARS)


def _job(job: JobSpec) -> None:
    _text("job_id", job.job_id, TEXT_MAX_CHARS)
    for name in ("min_nodes", "max_nodes", "node_unit", "max_restarts"):
        _number(name, getattr(job, name))
    if job.policy is not None:
        _number("max_node_failures", job.policy.max_node_failures)
        _number("max_no_progress", job.policy.max_no_progress)
        for name in ("restart_window_s", "backoff_first_s", "backoff_max_s"):
            _seconds(name, getattr(job.policy, name))
        _texts("rules", job.policy.rules, RULES_MAX, TEXT_MAX_CHARS)
    if job.checks is not None:
        _name("level", job.checks.level)
        _seconds("timeout_s", job.checks.timeout_s)
        _seconds("straggler_threshold", job.checks.straggler_threshold)
        _seconds("compute_threshold", job.checks.compute_threshold)
        _name("on_restart", job.checks.on_restart)
        _texts("floors", job.checks.floors, RULES_MAX, TEXT_MAX_CHARS)
    if job.hang is not None:
        _seconds("hang.timeout_s", job.hang.timeout_s)
        _seconds("hang.start_s", job.hang.start_s)
    if job.rescale_delay_s is not None:
        _seconds("rescale_delay_s", job.rescale_delay_s)
    if job.succession is not None:
        check_succession(job.succession)


def check_succession(spec: SuccessionSpec) -> None:
    """Look at what a host that may lead, or a node of it, was given; raises as ``check``."""
    _text("endpoints", spec.endpoints, TEXT_MAX_CHARS)
    for endpoint in spec.endpoints.split(","):
        _name("endpoints", endpoint)
    for name in ("lease_s", "fence_s", "node_timeout_s", "node_grace_s"):
        _seconds(name, getattr(spec, name))


def _node(node: NodeSpec) -> None:
    _name("node_id", node.node_id)
    _name("incarnation", node.incarnation)
    _name("host", node.host)
    _name("address", node.address)
    _text("role", node.role, TEXT_MAX_CHARS)
    _number("local_world_size", node.local_world_size, 0, LOCAL_WORLD_SIZE_MAX)
    if node.wanted_rank is not None:
        _number("wanted_rank", node.wanted_rank)


def _offer(offer: Offer) -> None:
    _name("address", offer.address)
    _number("port", offer.port, 0, PORT_MAX)
    if offer.snapshots is not None:
        _snapshots(offer.snapshots)


def _snapshots(snapshots: Snapshots) -> None:
    _number("round", snapshots.round)
    _name("formed_by", snapshots.formed_by)
    _length("held", len(snapshots.held), SNAPSHOTS_MAX)
    for snapshot in snapshots.held:
        _number("step", snapshot.step, 0, STEP_MAX)
        _number("world_size", snapshot.world_size)
        _number("rank_offset", snapshot.rank_offset)
    _length("replicas", len(snapshots.replicas), SNAPSHOTS_MAX)
    for replica in snapshots.replicas:
        _number("step", replica.step, 0, STEP_MAX)
        _number("world_size", replica.world_size)
        _length("ranks", len(replica.ranks), LOCAL_WORLD_SIZE_MAX)
        for rank in replica.ranks:
            _number("rank", rank)


def _claim(claim: Claim) -> None:
    for name in ("round", "restarts", "nodes", "node_rank", "rank_offset"):
        _number(name, getattr(claim, name))
    _number("term", claim.term, 0, BALLOT_MAX)
    _name("formed_by", claim.formed_by)
    _name("successor", claim.successor)
    _length("failures", len(claim.failures), defaults.FAILURES_IN_VERDICT)
    for failure in claim.failures:
        _failure(failure)
    if claim.past is not None:
        _past(claim.past)


def _past(past: Past) -> None:
    _ages("restart_ages_s", past.restart_ages_s)
    _texts("excluded", past.excluded, NODES_MAX, NAME_MAX_CHARS)
    _number("since_s", past.since_s, 0, AGE_MAX_S)
    _length("failures", len(past.failures), NODES_MAX)
    for node in past.failures:
        _name("node_id", node.node_id)
        _ages("ages_s", node.ages_s)
    if past.progress is not None:
        _number("furthest", past.progress.furthest, -1, STEPS_MAX)
        _number("idle_restarts", past.progress.idle_restarts)


def _progress(progress: Progress) -> None:
    _number("furthest", progress.furthest, -1, STEPS_MAX)


def _failure(failure: Failure) -> None:
    for name in ("rank", "local_rank", "node_rank"):
        _number(name, getattr(failure, name), -1)
    _number("exit_code", failure.exit_code, -EXIT_CODE_MAX, EXIT_CODE_MAX)
    _number("pid", failure.pid)
    _number("time_s", failure.time_s, 0, TIME_MAX_S)
    _name("host", failure.host)
    _text("role", failure.role, TEXT_MAX_CHARS)
    _text("error_file", failure.error_file, TEXT_MAX_CHARS)
    _text("error_json", failure.error_json, defaults.ERROR_FILE_MAX_BYTES)
    _text("message", failure.message, 2 * TEXT_MAX_CHARS)
    _text("stderr_tail", failure.stderr_tail, defaults.STDERR_TAIL_MAX_BYTES)


# --- values --------------------------------------------------------------------------------------


def _number(name: str, value: int, least: int = 0, most: int = COUNT_MAX) -> None:
    if not least <= value <= most:
        raise OutOfBounds(
            f"{name} was given {value}, which no agent sends; right would be {least} to {most}."
        )


def _span(name: str, value: float, most: float) -> None:
    if not 0 <= value <= most:  # also what is no number
        raise OutOfBounds(f"{name} was given {value:g}; right would be 0 to {most:g}.")


def _seconds(name: str, value: float) -> None:
    """What is no number, negative or without end is the business of ``admission``."""
    if SECONDS_MAX < value < math.inf:
        raise OutOfBounds(f"{name} was given {value:g}; right would be at most {SECONDS_MAX:g}.")


def _ages(name: str, ages: tuple[int, ...]) -> None:
    _length(name, len(ages), AGES_MAX)
    if ages:
        _number(name, max(ages), 0, AGE_MAX_S)


def _length(name: str, length: int, most: int) -> None:
    if length > most:
        raise OutOfBounds(f"{name} has {length} entries; right would be at most {most}.")


def _text(name: str, text: str, most: int) -> None:
    if len(text) > most:
        raise OutOfBounds(f"{name} has {len(text)} characters; right would be at most {most}.")


def _reason(text: str) -> None:
    """A node that gives none when it leaves would be taken for one that stays."""
    _text("reason", text, NAME_MAX_CHARS)
    if not text:
        raise OutOfBounds("reason is empty; right would be why the node leaves.")


def _texts(name: str, texts: Iterable[str], count: int, most: int) -> None:
    texts = tuple(texts)
    _length(name, len(texts), count)
    for text in texts:
        _text(name, text, most)


def _name(name: str, text: str) -> None:
    """A name goes to terminals and into the environment of workers as it is."""
    _text(name, text, NAME_MAX_CHARS)
    if not text.isprintable():
        raise OutOfBounds(
            f"{name} {text[:40]!a} has characters that cannot be shown; right would be printable "
            "ones only."
        )
