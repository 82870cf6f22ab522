"""The master's side of the ladder: orders to nodes, and the conclusion for each. No I/O, no clock.

It is an ``Examination`` of ``rendezvous``: the master passes in the nodes' answers and the time.
``plan`` and ``verdict`` make the decisions.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from .. import defaults
from ..rendezvous.group.examination import CheckStep, Conclusion, NodeFinding
from ..rendezvous.protocol.check_messages import CheckSpec
from .differences import COMPARED_FACTS
from .measure import needed_s
from .plan import MAX_ROUNDS, just_failed, plan
from .records import LOWER_IS_BETTER, Fact, Level, Phase, Record, RecordError, record_from_json
from .report import report_to_json
from .results import MEETING_METRICS, Answered, Known, Results, Rules, Step
from .verdict import Standing, Verdicts, exit_code, metric_words, verdict

_SHARES = {
    Phase.FACTS: 1 / 2,  # running check workers import torch before they answer
    Phase.SOLO: 1 / 2,
    Phase.PAIR: 1 / 6,
    Phase.SUSPECTS: 1 / 8,
    Phase.ALL: 1 / 6,
}
"""Maximum share of the total time limit per step.

If all steps from PAIR on hang, they use two thirds of it. The earlier phases take a few seconds.
"""

_LEAST_SHARE = 1 / 20
"""Minimum time limit of a meeting."""

_LEAST_GPUS_S = 15.0
"""The same with GPUs, in seconds: NCCL creates a communicator in the first call, and connects each
algorithm on its first use."""

_PER_GPU_S = 0.005
"""Additional time per participating GPU."""

_GPUS_PER_NODE = 8
"""Assumed number of workers of a node that has not reported it."""


class Ladder:
    """One run of the ladder, for some nodes of a job."""

    def __init__(
        self,
        spec: CheckSpec,
        nodes: Sequence[str],
        vouched: Sequence[str],
        known: dict[str, Known] | None = None,
    ) -> None:
        """Start the ladder.

        Args:
            nodes: the nodes to check, by identity, in the order in which they meet.
            vouched: the nodes among them that have passed before.
            known: the results of nodes that passed before; the results of nodes that pass now are
                added.

        Raises:
            ValueError: If a minimum of ``spec`` is invalid: the master then rejects the job.
        """
        self._spec = spec
        self._level = Level(spec.level)
        self._known = {} if known is None else known
        self._results = Results(
            tuple(nodes), frozenset(vouched), rules=Rules.of(spec), known=dict(self._known)
        )
        self._step: Step | None = None
        self._records: dict[str, Record] = {}
        self._workers: dict[str, int] = {}
        self._has_gpus: bool | None = None
        """Whether GPUs are checked; None if no node has reported it."""
        for node in self._results.vouched & self._known.keys():
            self._learn_devices(self._known[node].facts, self._known[node].metrics)
        self._alone_s = {Phase.FACTS: 0.0, Phase.SOLO: 0.0}
        """Time of the slowest node that passed in each phase, including the import of torch: the
        maximum for a node whose check workers must be restarted."""
        self._revived_s = 0.0
        """Time of the slowest node that had to restart them; 0 if unknown."""

    def next_step(self, remaining_s: float) -> CheckStep | None:
        """Return the next step; None if there is a conclusion."""
        self._close_step()
        if not self._spec.timeout_s:
            # The master provides the time that GPUs may need.
            remaining_s -= defaults.CHECK_TIMEOUT_GPUS_S - self._timeout_s
        if remaining_s <= 0:
            return None
        may_meet_again = self._has_time_for_a_round(remaining_s)
        step = plan(self._results, max(1, self._results.rounds + may_meet_again))
        if step is None:
            return None
        limit_s = min(remaining_s, self._limit_s(step, remaining_s))
        if limit_s < needed_s(self._level, step.phase):
            return None  # its result would not give any information
        self._step = step
        text = _progress(self._results, step) + _slowest(self._results)
        return CheckStep(step.phase.value, step.meetings, limit_s, text)

    # --- time --------------------------------------------------------------------------------

    @property
    def _restart_s(self) -> float:
        """Time that a node needs to be ready for a meeting after its check workers were killed."""
        return self._revived_s or sum(self._alone_s.values())

    @property
    def _timeout_s(self) -> float:
        if self._spec.timeout_s:
            return self._spec.timeout_s
        if self._has_gpus is False:
            return defaults.CHECK_TIMEOUT_S
        return defaults.CHECK_TIMEOUT_GPUS_S

    def _least_s(self, nodes: int) -> float:
        least_s = max(1.5 * needed_s(self._level, Phase.PAIR), self._timeout_s * _LEAST_SHARE)
        if self._has_gpus is False:
            return least_s
        # A node that ran alone also created a communicator; its other time there is not counted.
        alone_s = min(self._alone_s[Phase.SOLO], self._timeout_s * _SHARES[Phase.PAIR])
        ranks = nodes * max(self._workers.values(), default=_GPUS_PER_NODE)
        return max(least_s, _LEAST_GPUS_S, alone_s) + _PER_GPU_S * ranks

    @property
    def _last_meetings_s(self) -> float:
        """The minimum time for a meeting of two followed by a meeting of all."""
        return self._least_s(2) + self._least_s(len(self._results.sound))

    def _has_time_for_a_round(self, remaining_s: float) -> bool:
        """Whether there is time for a round of pairs in which a node hangs, and a meeting of all.

        The last meeting clears good nodes and excludes bad ones, even if not known to be bad.
        """
        starts = 2 if just_failed(self._results) else 1
        return remaining_s >= starts * self._restart_s + self._last_meetings_s

    def _limit_s(self, step: Step, remaining_s: float) -> float:
        is_alone = len(self._results.nodes) == 1
        if step.phase is Phase.FACTS:
            # Whether there are GPUs is not known yet: if there are none, less time is left.
            known_s = self._timeout_s if self._has_gpus else defaults.CHECK_TIMEOUT_S
            return (self._spec.timeout_s or known_s) * (1.0 if is_alone else _SHARES[step.phase])
        if is_alone:
            return remaining_s
        share_s = self._timeout_s * _SHARES[step.phase]
        if step.phase is Phase.SOLO:
            # After meetings, it must not use up the time of the other steps.
            later_s = remaining_s - self._last_meetings_s if self._results.rounds else share_s
            enough_s = max(1.5 * self._restart_s, 2 * needed_s(self._level, Phase.SOLO))
            return max(enough_s, min(share_s, later_s))
        least_s = self._least_s(max(map(len, step.meetings)))
        limit_s = max(share_s, least_s)
        if step.phase is not Phase.ALL:
            # A node that hangs may do so in each remaining round, and is restarted each time.
            rounds = min(MAX_ROUNDS - self._results.rounds, len(self._results.sound) - 1)
            all_s = self._least_s(len(self._results.sound))
            fair_s = (remaining_s - all_s) / rounds - self._restart_s
            limit_s = max(least_s, min(limit_s, fair_s))
        # The first order of a node that has passed before starts its check workers.
        asked = {node for answered in self._results.steps for node in answered.records}
        is_cold = any(node not in asked for meeting in step.meetings for node in meeting)
        return limit_s + self._restart_s if is_cold else limit_s

    # --- answers -----------------------------------------------------------------------------

    def answered(self, node_id: str, report: str, took_s: float) -> None:
        """Record a node's answer to the current step, and its time in seconds."""
        try:
            record = record_from_json(report)
        except RecordError as error:
            record = Record(node_id, Phase.FACTS, failure=f"invalid answer: {error}")
        if self._step is not None and not record.failure:
            self._learn(node_id, self._step.phase, record, took_s)
        self._take(node_id, record)

    def _learn(self, node_id: str, phase: Phase, record: Record, took_s: float) -> None:
        """Record the values on which the time of later steps depends."""
        if phase not in self._alone_s:
            return
        if self._results.rounds:
            self._revived_s = max(self._revived_s, took_s)
            return
        self._alone_s[phase] = max(self._alone_s[phase], took_s)
        self._learn_devices(record.facts, record.metrics)
        workers = record.facts.get("local_world_size")
        if isinstance(workers, int):
            self._workers[node_id] = workers

    def _learn_devices(self, facts: Mapping[str, Fact], metrics: Mapping[str, float]) -> None:
        # Only a GPU has a copy from the host.
        shown = bool(facts.get("gpus")) or "copy_gb_per_s" in metrics
        self._has_gpus = self._has_gpus or shown

    def silent(self, node_id: str, why: str) -> None:
        """Record that a node has not answered in the current step, which counts as its failure."""
        self._take(node_id, Record(node_id, Phase.FACTS, failure=why))

    def lost(self, node_id: str) -> None:
        """Record that a node is lost, which does not give any information on its partners."""
        self._results = replace(self._results, lost=self._results.lost | {node_id})

    def conclude(self) -> Conclusion:
        """Return the conclusion; before the last step, missing results count as failures."""
        self._close_step()
        verdicts = verdict(self._results)
        self._remember(verdicts)
        lenient = not self._spec.is_binding and not self._spec.only
        links = () if lenient else verdicts.bad_links
        findings = {
            found.node: NodeFinding(
                exit_code=0 if lenient else exit_code(found, self._spec),
                sentence=found.text,
                has_met=bool(self._results.passed[found.node]),
            )
            for found in verdicts.nodes
            if found.standing is not Standing.LOST
        }
        report = report_to_json(verdicts, defaults.CHECK_REPORT_MAX_BYTES)
        return Conclusion(findings, links, verdicts.sentence, report)

    def _remember(self, verdicts: Verdicts) -> None:
        for found in verdicts.nodes:
            if found.standing in (Standing.PASSED, Standing.SLOW, Standing.LEFT_OUT):
                before = self._results.known.get(found.node)
                facts = {name: found.facts[name] for name in COMPARED_FACTS if name in found.facts}
                if not found.facts and before is not None:
                    facts = dict(before.facts)  # it received no order this time
                self._known[found.node] = Known(found.metrics, facts)

    def _take(self, node_id: str, record: Record) -> None:
        if self._step is None:
            return
        # A node's own report is trusted, except for its name and its order.
        self._records[node_id] = dataclasses.replace(record, node=node_id, phase=self._step.phase)

    def _close_step(self) -> None:
        if self._step is not None:
            answered = Answered(self._step, self._records)
            self._results = replace(self._results, steps=(*self._results.steps, answered))
        self._step, self._records = None, {}


def _progress(results: Results, step: Step) -> str:
    """Return a description of a step, after the results of the previous ones: phase and nodes."""
    if step.phase is Phase.ALL:
        return f"{step.phase.title}: all {len(step.meetings[0])} together"
    total = len(step.meetings)
    unit = "node" if step.phase in (Phase.FACTS, Phase.SOLO) else "pair"
    what = unit if total == 1 else unit + "s"
    more = {Phase.SOLO: ", each alone", Phase.SUSPECTS: f", round {results.rounds + 1}"}
    return f"{step.phase.title}: {total} {what}{more.get(step.phase, '')}"


def _slowest(results: Results) -> str:
    for metric in (*reversed(MEETING_METRICS), "compute_tflops"):
        values = results.best[metric]
        if len(values) > 1:
            pick = max if metric in LOWER_IS_BETTER else min
            node = pick(values, key=lambda name: values[name])
            return f"; slowest so far {node}: {metric_words(metric, values[node])}"
    return ""
