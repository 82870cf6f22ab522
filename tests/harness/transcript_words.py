"""Messages between nodes and a master, each in one line: as transcripts show them."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ft_run.rendezvous.protocol.check_messages import (
    CheckOrder,
    CheckResult,
    CheckVerdict,
)
from ft_run.rendezvous.protocol.claim import Claim
from ft_run.rendezvous.protocol.drain_messages import (
    CancelDrain,
    Drain,
    Drained,
    MayLeave,
    Notice,
)
from ft_run.rendezvous.protocol.messages import (
    Attend,
    Challenge,
    ChallengeReply,
    Done,
    Excluded,
    Failed,
    Heard,
    JobSpec,
    Leave,
    MasterMessage,
    NodeMessage,
    Refused,
    Renamed,
    Start,
    Stop,
    Stopped,
    Verdict,
    Waiting,
)
from ft_run.rendezvous.work.intervals import pairs
from ft_run.rendezvous.work.messages import WorkClaim, WorkGrant, WorkReport


def hold(path: Path, perform: Callable[[str], str]) -> None:
    """Hold a script against what is said when it is performed, or write that down.

    Args:
        path: the script with what was said.
        perform: plays a script, and returns it with what was said.
    """
    script = path.read_text()
    performed = perform(script)
    if os.environ.get("FT_RUN_REWRITE_TRANSCRIPTS"):
        path.write_text(performed)
    else:
        assert performed == script


def words(message: NodeMessage | MasterMessage, job: JobSpec) -> str:
    """Return a message in one line.

    Args:
        message: from a node or a master.
        job: the options of the script; others are shown.
    """
    match message:
        case Attend():
            return _attend(message, job)
        case Failed(number, failure):
            where = f"; proposal: {failure.proposal.words}" if failure.proposal else ""
            status = failure.exit_code
            return f"failed in round {number}: rank {failure.rank} exited with {status}{where}"
        case Done(number):
            return f"done with round {number}"
        case Stopped(number):
            return f"stopped round {number}"
        case Leave(reason):
            return f"leaves: {reason}"
        case Notice(reason, seconds):
            return f"will be gone ({reason}); the ranks have {seconds:g} s"
        case Drained(number, -1):
            return f"round {number}: the workers save no state"
        case Drained(number, step):
            return f"round {number}: the state of step {step} is left"
        case ChallengeReply():
            return "is here"
        case Heard():
            return "heard the verdict"
        case WorkReport(_, _, claim, _, idle, others):
            parts = [_work(claim), f"{idle} idle" if idle else "none idle", *map(_work, others)]
            return "; ".join(parts)
        case CheckResult(number, report):
            return f"check {number}: {report}"
        case _:
            return _from_master(message)


def _attend(message: Attend, job: JobSpec) -> str:
    parts = ["attends"]
    if message.node.wanted_rank is not None:
        parts.append(f"wants node rank {message.node.wanted_rank}")
    if message.node.segment:
        parts.append(f"of segment {message.node.segment}")
    if message.job.job_id != job.job_id:
        parts.append(f"for job {message.job.job_id!r}")
    elif message.job != job:
        parts.append("with other options")
    if message.claim is not None:
        parts.append(_claim(message.claim))
    if message.claims:
        parts.append(f"with {message.claims} claims")
    if message.leaving:
        parts.append("and leaves")
    return ", ".join(parts)


def _claim(claim: Claim) -> str:
    checked = ", passed the checks" if claim.checked else ""
    if not claim.nodes:
        return f"was a spare of round {claim.round}{checked}"
    failures = "".join(f", rank {failure.rank} failed" for failure in claim.failures)
    restarts = f", restarts {claim.restarts}" if claim.restarts else ""
    excluded = claim.past.excluded if claim.past is not None else ()
    past = restarts + (f", excluded {', '.join(excluded)}" if excluded else "")
    if claim.past is not None and claim.past.carried:
        past += "".join(f", {one.name} {one.value}" for one in claim.past.carried)
    return (
        f"was node {claim.node_rank} of {claim.nodes} in round {claim.round} of {claim.formed_by}"
        f" ({claim.state.name.lower()}{failures}{past}{checked})"
    )


def _from_master(message: NodeMessage | MasterMessage) -> str:
    match message:
        case Waiting():
            return _waiting(message)
        case Start(place):
            restarts = f"restarts {place.restarts}"
            free = " (not counted)" if place.is_free else ""
            return (
                f"start round {place.round} as node {place.node_rank} of {place.nodes}, "
                f"MASTER {place.master_addr}:{place.master_port}, {restarts}{free}: {place.reason}"
                + (f" [{place.decision}]" if place.decision else "")
            )
        case Stop(number, reason, lets_settle, is_stale, is_hung):
            how = " at once" if is_stale else " (ending workers may end)" if lets_settle else ""
            how = " (which hang)" if is_hung else how
            return f"stop round {number}{how}: {reason}"
        case Drain(number, reason, seconds, is_whole, resizes):
            whole = ", for another number of ranks" if resizes else ""
            whole = ", nothing in memory stays" if is_whole else whole
            return (
                f"leave the state of one step of round {number} in {seconds:g} s{whole}: {reason}"
            )
        case CancelDrain(number):
            return f"go on with round {number}: the world does not grow"
        case WorkGrant(_, name, _, _, _, refusal) if refusal:
            return f"{name}: {refusal}"
        case WorkGrant(_, name, pieces, confirmed_to):
            return f"{name}: do {_pieces(pieces)}; all below {confirmed_to} are confirmed"
        case MayLeave(number, step):
            return f"you may leave round {number}: all have left step {step}"
        case Challenge():
            return "are you there?"
        case Verdict(_, code, sentence):
            return f"verdict, exit {code}: {sentence}"
        case Refused(sentence, is_displaced):
            return f"{'displaced' if is_displaced else 'refused'}: {sentence}"
        case Renamed(node_id):
            return f"you are {node_id}"
        case Excluded(sentence):
            return f"excluded: {sentence}"
        case CheckOrder():
            where = f"{message.master_addr}:{message.master_port}"
            ranks = f"rank {message.rank_offset} of {message.world_size}"
            return f"check {message.number}: {message.phase} as {ranks} at {where}"
        case CheckVerdict(code, sentence, conclusion):
            mark = f"go with exit {code}: {sentence}" if code else "passed"
            return f"checks: {mark} ({conclusion})"
    raise TypeError(type(message))


def _work(claim: WorkClaim) -> str:
    return f"{claim.name}: has done {_pieces(claim.confirmed)}, has {_pieces(claim.held)}"


def _pieces(bounds: Sequence[int]) -> str:
    spans = [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairs(bounds)]
    return ",".join(spans) or "none"


def _waiting(message: Waiting) -> str:
    wanted = f"{message.min_nodes}"
    if message.max_nodes != message.min_nodes:
        wanted += f" to {message.max_nodes}"
    parts = [f"wait as a spare ({message.joined} of {wanted} nodes)"] if message.spare else []
    if not message.spare:
        parts.append(f"wait: {message.joined} of {wanted} nodes, {message.timeout_s:g} s left")
    if message.missing:
        parts.append("missing: " + ", ".join(message.missing))
    if message.backoff_s:
        parts.append(f"next round in {message.backoff_s:g} s")
    return "; ".join(parts)
