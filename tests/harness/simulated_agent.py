"""Agents and streams of the simulated world: what a real agent does, without processes.

Messages on a stream keep their order; they are delayed for as long as the history likes, and
lost only when the stream breaks, each side noticing in its own time.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ft_run.launcher.workers.smaller_parts import propose
from ft_run.rendezvous.protocol.carried import Carried, merged
from ft_run.rendezvous.protocol.check_messages import CheckOrder, CheckResult, CheckVerdict
from ft_run.rendezvous.protocol.claim import Claim, ClaimState, Progress
from ft_run.rendezvous.protocol.drain_messages import (
    CancelDrain,
    Drain,
    Drained,
    MayLeave,
    Notice,
)
from ft_run.rendezvous.protocol.failure import Failure, FailureKind
from ft_run.rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Assignment,
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
    NodeSpec,
    Refused,
    Renamed,
    Resigned,
    Start,
    Stop,
    Stopped,
    Verdict,
    Waiting,
)
from ft_run.rendezvous.protocol.offer import (
    Offer,
    Replica,
    Resumption,
    Saving,
    Snapshot,
    Snapshots,
)
from ft_run.rendezvous.work.messages import WorkClaim, WorkGrant
from ft_run.rendezvous.work.node_work import NodeWork, Taker
from msgspec.structs import replace


class Broken:
    """Stands at the end of what a stream still delivers."""

    def __repr__(self) -> str:
        return "Broken()"


BROKEN = Broken()


@dataclass(slots=True, eq=False)
class Stream:
    """One stream between an agent and a master; ``number`` is the master's name for it."""

    number: int
    agent: "Agent"
    up: deque[NodeMessage | Broken] = field(default_factory=deque)
    down: deque[MasterMessage | Broken] = field(default_factory=deque)
    is_up_open: bool = True
    is_down_open: bool = True

    def send_up(self, message: NodeMessage) -> None:
        """Send from the agent; into a broken stream, it vanishes."""
        if self.is_up_open:
            self.up.append(message)

    def send_down(self, message: MasterMessage) -> None:
        """Send from the master."""
        if self.is_down_open:
            self.down.append(message)

    def end_up(self) -> None:
        """The agent's side ends after what was sent."""
        if self.is_up_open:
            self.up.append(BROKEN)
            self.is_up_open = False

    def end_down(self) -> None:
        """The master's side ends after what was sent."""
        if self.is_down_open:
            self.down.append(BROKEN)
            self.is_down_open = False

    def cut(self, keep_up: int, keep_down: int) -> None:
        """The network breaks the stream: some of what was on its way still arrives."""
        _cut(self.up, keep_up)
        _cut(self.down, keep_down)
        self.is_up_open = self.is_down_open = False


def _cut(queue: deque[Any], keep: int) -> None:
    if BROKEN in queue:
        keep = min(keep, len(queue) - 1)
    while len(queue) > keep:
        queue.pop()
    queue.append(BROKEN)


PHASE_STEPS = 3
"""The script trains in phases of so many steps, each with a Checkpointer: an owner of snapshots."""


def number_of(chosen: Resumption | Saving) -> int:
    """Return the number of steps of all phases up to a state."""
    return (chosen.owner - 1) * PHASE_STEPS + chosen.step


@dataclass(frozen=True)
class Left:
    """What its workers have left of a step."""

    world_size: int
    rank_offset: int
    is_replicated: bool
    state: tuple[str, int, int]
    """What tells states apart: the master, the round and the step that it was made in."""
    ranks: int
    """How many shares it is."""


class Agent:
    """One agent process and its workers."""

    def __init__(
        self,
        spec: NodeSpec,
        job: JobSpec,
        new_port: Callable[[], int],
        clock: Callable[[], float],
        *,
        repeats_leave: bool,
        is_replicated: bool = False,
        saves: bool = True,
    ) -> None:
        self.spec = spec
        self.job = job
        self.is_alive = True
        self.is_frozen = False
        self.has_ended = False
        self.was_refused = False
        self.was_excluded = False
        self.verdict: Verdict | None = None
        self.is_leaving = False
        self.stream: Stream | None = None
        self.live: int | None = None
        """The round whose workers are alive."""
        self.is_stopping = False
        self.assignment: Assignment | None = None
        self.order: CheckOrder | None = None
        """What it is checking."""
        self.sent_away = 0
        """The exit code that the checks made it end with."""
        self.has_passed = False
        self._last_order: CheckOrder | None = None
        self._last_result: CheckResult | None = None
        self._newest_order = 0
        """On this stream: another master begins to count anew."""
        self.progress = Progress()
        """Of the workers of the round."""
        self.starts: list[int] = []
        self._new_port = new_port
        self._clock = clock
        self._started_at = 0.0
        self._repeats_leave = repeats_leave
        self._claim: Claim | None = None
        self._is_spare = False
        self._has_to_say_why = False
        """It stays only to tell the next master that it leaves."""
        self.left: dict[int, Left] = {}
        """The snapshots of its workers, by the number of steps of all phases."""
        self.replicas: dict[int, dict[int, Left]] = {}
        """By step and first rank: shares of other nodes."""
        self.steps = 0
        """How many steps its workers have done."""
        self._is_replicated = is_replicated
        self.saves = saves
        """Its workers have a Checkpointer."""
        self.notice: float | None = None
        """It will be gone in so many seconds, and leaves then at the latest."""
        self.drain: Drain | None = None
        """What its workers were told in this round."""
        self._cancelled: int | None = None
        """The order of this round that was cancelled last."""
        self.drains_at: int | None = None
        """The step whose state all ranks leave, as they have agreed."""
        self.work = NodeWork(self._send, self._answer_worker)
        self.pieces: dict[Taker, int] = {}
        """What its loops of shared work have in hand."""
        self.is_over: set[Taker] = set()
        """The loops that have come to the end."""
        self.waits: set[Taker] = set()
        """The loops that wait for a piece."""
        self.refusals: list[str] = []
        """Why its loops got no piece."""
        self.did: list[tuple[str, int]] = []
        """The pieces whose bodies have ended, by name."""
        self.loop_of: dict[Taker, str] = {}
        """The names of all loops."""
        self.carried: Carried = ()
        """All values that it knows."""
        self.offer = self._new_offer()

    @property
    def name(self) -> str:
        """Its identity and incarnation."""
        return f"{self.spec.node_id}/{self.spec.incarnation}"

    @property
    def is_there(self) -> bool:
        """Whether the process exists and has something to do."""
        return self.is_alive and not self.has_ended

    @property
    def is_done(self) -> bool:
        """Whether its workers have all exited 0."""
        return self._claim is not None and self._claim.state is ClaimState.DONE

    # --- streams -----------------------------------------------------------------------------

    def attend(self, number: int) -> Stream:
        """Open a stream."""
        self.stream = Stream(number, self)
        self._newest_order = 0
        leaving = "SIGTERM" if self.is_leaving else ""
        claim, claims = self._present_claim(), self.work.claims(self._clock())
        self.offer = replace(self.offer, snapshots=self._held())
        self._send(
            Attend(
                PROTOCOL_VERSION, "1", self.job, self.spec, self.offer, claim, leaving,
                len(claims),
            )
        )  # fmt: skip
        for report in claims:
            self._send(report)
        if self.is_leaving and self._repeats_leave:
            self._send(Leave("SIGTERM"))
        if self.notice is not None:
            self._send(Notice("a notice", self.notice))
        stream = self.stream
        if self._has_to_say_why:
            self._end()
        return stream

    def pretend(self, claim: Claim) -> None:
        """Say from now on that it was in a round that no master of this job has formed."""
        self._claim = claim

    def _present_claim(self) -> Claim | None:
        claim = self._bare_claim()
        return replace(claim, checked=self.has_passed) if claim is not None else None

    def _bare_claim(self) -> Claim | None:
        last = self._claim
        if last is not None and last.past is not None:
            since_s = int(self._clock() - self._started_at)
            last = replace(last, past=replace(last.past, since_s=since_s))
        if not self._is_spare:
            return last
        return Claim(
            round=last.round if last else 0,
            formed_by=last.formed_by if last else "",
            restarts=last.restarts if last else 0,
            nodes=0,
            node_rank=0,
            rank_offset=0,
            successor="",
            state=ClaimState.STOPPED,
            past=last.past if last else None,
            term=last.term if last else 0,
            clear=last.clear if last else 0,
        )

    def _send(self, message: NodeMessage) -> None:
        if self.stream is not None:
            self.stream.send_up(message)

    def receive(self, stream: Stream, message: MasterMessage | Broken) -> bool:
        """Take what a stream delivers; return whether it makes the workers of a round start."""
        if not self.is_there or stream is not self.stream:
            return False
        match message:
            case Broken():
                self.stream = None
                stream.end_up()
            case Start(assignment):
                return self._start(assignment)
            case Stop(round_number):
                self._stop(round_number)
            case Drain(round_number):
                self._drain(message)
            case CancelDrain(round_number, number):
                order = self.drain if self.live == round_number else None
                if order is not None and order.grows and order.number != number:
                    self.drain, self.drains_at, self._cancelled = None, None, order.number
            case MayLeave(round_number):
                if self.notice is not None and self.live == round_number and not self.is_leaving:
                    self.leave()
            case WorkGrant():
                self.work.granted(message, self._clock())
            case Challenge():
                self._send(ChallengeReply())
            case Resigned():
                self._take_resignation(message)
            case Verdict():
                self.verdict = message
                self._send(Heard())
                self._end()
            case Refused():
                self.was_refused = True
                self._end()
            case Renamed(node_id):
                self.spec = replace(self.spec, node_id=node_id)
            case Excluded():
                self.was_excluded = True
                self._end()
            case CheckOrder():
                self._check(message)
            case CheckVerdict():
                self._take_finding(message)
            case Waiting():
                self._is_spare = message.spare and self.live is None and not self.is_done
                if self._is_spare:
                    self.left.clear()
                    self.replicas.clear()
        return False

    def _take_resignation(self, resigned: Resigned) -> None:
        claim = self._claim
        if claim is None:
            return
        claim = replace(claim, clear=resigned.clear)
        if (claim.round, claim.formed_by) == (resigned.round, resigned.formed_by):
            claim = replace(
                claim,
                ended=resigned.reason,
                restarts=resigned.restarts,
                past=resigned.past,
                failures=(),
            )
            self._started_at = self._clock()
        self._claim = claim

    def _end(self) -> None:
        self._no_loops()
        self.has_ended = True
        self.live = None
        if self.stream is not None:
            self.stream.end_up()

    # --- checks ------------------------------------------------------------------------------

    def _check(self, order: CheckOrder) -> None:
        if order.number < self._newest_order or order == self.order:
            return
        self._newest_order = order.number
        if order == self._last_order and self._last_result is not None:
            self._send(self._last_result)
            return
        assert self.live is None, f"{self.name} told to check under live workers"
        self.order = order

    def finish_check(self, report: str) -> None:
        """The order has been carried out."""
        assert self.order is not None
        self.offer = self._new_offer()
        self._last_result = CheckResult(self.order.number, report, self.offer)
        self._last_order, self.order = self.order, None
        self._send(self._last_result)

    def _take_finding(self, verdict: CheckVerdict) -> None:
        self.order = None
        self.has_passed = not verdict.exit_code
        if verdict.exit_code:
            self.sent_away = verdict.exit_code
            self._end()

    # --- snapshots ---------------------------------------------------------------------------

    @property
    def line(self) -> tuple[int, str] | None:
        """The round that its snapshots belong to."""
        at = self.assignment
        return (at.round, at.formed_by) if at is not None else None

    def take_snapshot(self) -> None:
        """Its workers do a step, and leave its state; the one before stays."""
        at = self.assignment
        assert at is not None
        self.steps += 1
        self.left[self.steps] = Left(
            at.world_size,
            at.rank_offset,
            self._is_replicated,
            (at.formed_by, at.round, self.steps),
            self.spec.local_world_size,
        )
        self.left = {step: self.left[step] for step in sorted(self.left)[-2:]}
        self._say_drained()

    # --- shared work -------------------------------------------------------------------------

    def ask(self, taker: Taker, claim: WorkClaim) -> None:
        """A loop begins, or the body of its piece has ended."""
        piece = self.pieces.pop(taker, None)
        if piece is not None:
            self.did.append((claim.name, piece))
        self.loop_of[taker] = claim.name
        self.waits.add(taker)
        self.work.ask(taker, claim, self._clock())

    def leave_loop(self, taker: Taker, claim: WorkClaim) -> None:
        """A loop is left before its end."""
        self.pieces.pop(taker, None)
        self.waits.discard(taker)
        self.work.leave(taker, claim.name)
        self.work.give_back(taker, claim.name, self._clock())

    def _answer_worker(self, taker: Taker, piece: int | str) -> None:
        if self.live is None:
            return  # it is exiting
        assert taker in self.waits, f"{self.name} answers {taker}, which does not wait"
        self.waits.discard(taker)
        if isinstance(piece, str):
            self.refusals.append(piece)
        elif piece >= 0:
            self.pieces[taker] = piece
        else:
            self.is_over.add(taker)

    def _no_loops(self) -> None:
        self.pieces.clear()
        self.waits.clear()
        self.is_over.clear()

    # --- it will be gone ---------------------------------------------------------------------

    def give_notice(self, seconds: float) -> None:
        """A notice comes, while its workers run."""
        self.notice = seconds
        self._send(Notice("a notice", seconds))

    def _drain(self, order: Drain) -> None:
        if self.live != order.round or (order.grows and order.number == self._cancelled):
            return
        before, self.drain = self.drain, order
        if before is not None and before.grows and before.number != order.number:
            self.drains_at = None
        self._say_drained()  # once more, where it has

    @property
    def has_drained(self) -> bool:
        """Whether its workers have left the state that all ranks have agreed on, and wait."""
        return self.drains_at is not None and self.steps >= self.drains_at

    @property
    def saved(self) -> int | None:
        """The step that its workers have left as all ranks have agreed on, -1: they leave none."""
        if not self.saves:
            return -1
        return self.steps if self.has_drained else None

    def _say_drained(self) -> None:
        step = self.saved
        if self.drain is not None and step is not None and self.live == self.drain.round:
            self._send(Drained(self.drain.round, step, self.drain.number))

    def _held(self) -> Snapshots | None:
        if self.line is None or not (self.left or self.replicas):
            return None
        held = [
            Snapshot(
                (number - 1) % PHASE_STEPS + 1,
                one.world_size,
                one.rank_offset,
                one.is_replicated,
                (number - 1) // PHASE_STEPS + 1,
                number,
            )
            for number, one in sorted(self.left.items())
        ]
        replicas: list[Replica] = []
        for number, shares in sorted(self.replicas.items()):
            ranks = [r for first, one in shares.items() for r in range(first, first + one.ranks)]
            size = next(iter(shares.values())).world_size
            owner, step = divmod(number - 1, PHASE_STEPS)
            replicas.append(Replica(step + 1, size, tuple(ranks), owner + 1, number))
        return Snapshots(*self.line, tuple(held), tuple(replicas))

    def take_replica(self, step: int, share: Left) -> None:
        """Another node has sent its shares of a step."""
        self.replicas.setdefault(step, {})[share.rank_offset] = share
        self.replicas = {n: self.replicas[n] for n in sorted(self.replicas)[-2:]}

    def _new_offer(self) -> Offer:
        return Offer(self.spec.address, self._new_port(), self._held(), carried=self.carried)

    # --- rounds ------------------------------------------------------------------------------

    def _start(self, assignment: Assignment) -> bool:
        if self.is_leaving or (self._claim is not None and assignment.round <= self._claim.round):
            return False
        assert self.live is None, f"{self.name} told to start over live workers"
        self._claim = Claim(
            round=assignment.round,
            formed_by=assignment.formed_by,
            restarts=assignment.restarts,
            nodes=assignment.nodes,
            node_rank=assignment.node_rank,
            rank_offset=assignment.rank_offset,
            successor=assignment.successor,
            state=ClaimState.RUNNING,
            past=assignment.past,
            term=assignment.term,
        )
        self._started_at = self._clock()
        resumed = assignment.resumption
        is_of_these = resumed is not None and (resumed.round, resumed.formed_by) == self.line
        self.steps = number_of(resumed) if resumed is not None else 0
        kept = {n: one for n, one in self.left.items() if n == self.steps}
        self.left = kept if is_of_these else {}
        replicas = {n: one for n, one in self.replicas.items() if n == self.steps}
        self.replicas = replicas if is_of_these else {}
        self.live, self.assignment, self._is_spare = assignment.round, assignment, False
        self.drain, self.drains_at, self._cancelled = None, None, None
        self.carried = merged(assignment.carried, self.carried)
        self.progress = Progress()
        self.order = None
        self.starts.append(assignment.round)
        self.work.begin(assignment.round, self._clock())
        self._no_loops()
        return True

    def _stop(self, round_number: int) -> None:
        if self._claim is not None and round_number < self._claim.round:
            return  # of a round long over
        if self._claim is None or self._claim.round < round_number:
            self._send(Stopped(round_number, self.offer))
        elif self.live is not None:
            if self.notice is not None and not self.is_leaving:
                self.leave()
            self.is_stopping = True
        elif self.is_done:
            self._has_stopped()
        else:
            self._send(Stopped(round_number, self.offer))

    def finish_stop(self) -> None:
        """The last worker is dead."""
        self._has_stopped()

    def _has_stopped(self) -> None:
        assert self._claim is not None
        self._no_loops()
        self.work.end(self._clock())
        self.live, self.is_stopping = None, False
        self._claim = replace(self._claim, state=ClaimState.STOPPED)
        self.offer = self._new_offer()
        self._send(Stopped(self._claim.round, self.offer, self.progress))
        if self.is_leaving:
            self._go()

    def _go(self) -> None:
        """Nothing is left to be stopped: end, but tell a master that is away why, if it waits."""
        self._has_to_say_why = self.stream is None and self._repeats_leave
        if not self._has_to_say_why:
            self._end()

    def fail(
        self, kind: FailureKind = FailureKind.WORKER, exit_code: int = 1, *, samples: int = 0
    ) -> None:
        """A worker fails; an accelerator runs out of memory in a part of so many samples."""
        assert self._claim is not None
        if self.is_done and kind is FailureKind.WORKER:
            return  # rank 0 has succeeded
        assert self.assignment is not None
        failure = Failure(
            kind=kind,
            rank=self.assignment.rank_offset,
            local_rank=0,
            node_rank=self.assignment.node_rank,
            host=self.spec.host,
            pid=self._new_port(),
            exit_code=exit_code,
            time_s=0,
            note=self.work.note_of(self.assignment.rank_offset),
            after_stop=self.is_stopping and kind is FailureKind.WORKER,
            proposal=propose(samples, self.assignment.carried),
        )
        self._claim = replace(self._claim, failures=(*self._claim.failures, failure))
        self._send(Failed(self._claim.round, failure))
        self.is_stopping = True

    def finish(self) -> None:
        """All workers exit 0."""
        assert self._claim is not None
        assert self.assignment is not None
        self._no_loops()
        self.live = None
        for rank in range(self.spec.local_world_size):
            self.work.exited(self.assignment.rank_offset + rank, self._clock())
        self._claim = replace(self._claim, state=ClaimState.DONE)
        self._send(Done(self._claim.round))

    def finish_rank0(self) -> None:
        """Rank 0, which decides, exits 0; the node's other workers run on."""
        assert self._claim is not None
        if not self.is_done:
            self._claim = replace(self._claim, state=ClaimState.DONE)
            self._send(Done(self._claim.round))

    def leave(self) -> None:
        """SIGTERM."""
        self.is_leaving = True
        self._send(Leave("SIGTERM"))
        if self.live is not None:
            self.is_stopping = True
        elif self.is_done:
            self._has_stopped()
        else:
            self._go()

    def kill(self) -> None:
        """SIGKILL: its workers die with it."""
        self._no_loops()
        self.is_alive = False
        self.live = None
