"""The ladder as the master climbs it: what it asks of nodes, what it concludes for each. Pure.

It is an ``Examination`` of ``rendezvous.checking``: the master brings the answers of the nodes and
the time; the plan and the verdict are those of ``plan`` and ``verdict``.
"""

from collections.abc import Sequence
from dataclasses import replace

from .. import defaults, exit_codes
from ..rendezvous.checking import CheckStep, Conclusion, Finding
from ..rendezvous.messages import CheckSpec
from .plan import plan
from .records import Metrics, Phase, Record, RecordError, record_from_json
from .report import report_to_json
from .results import LOWER_IS_BETTER, MEETING_METRICS, Answered, Results, Rules, Step
from .verdict import NodeVerdict, Standing, metric_words, verdict

_SHARES = {
    Phase.FACTS: 1 / 2,  # check workers that have been started import torch before they answer
    Phase.SOLO: 1 / 2,
    Phase.PAIR: 1 / 6,
    Phase.SUSPECTS: 1 / 8,
    Phase.ALL: 1 / 6,
}
"""Of the time for the whole ladder, what one step may take at most.

Where everything hangs from the pairs on, two thirds of the time are used: what comes before takes
a few seconds of its own.
"""


class Ladder:
    """One way up the ladder, for some nodes of a job."""

    def __init__(self, spec: CheckSpec, nodes: Sequence[str], vouched: Sequence[str]) -> None:
        """Begin.

        Args:
            spec: how the job wants its nodes to be checked.
            nodes: who is checked, by identity, in the order in which they meet.
            vouched: those of them who have passed before.

        Raises:
            ValueError: a floor of the spec makes no sense.
        """
        self._spec = spec
        rules = Rules(spec.straggler_threshold, floors(spec.floors))
        self._results = Results(tuple(nodes), frozenset(vouched), rules=rules)
        self._step: Step | None = None
        self._records: dict[str, Record] = {}
        self._remaining_s = spec.timeout_s
        self._import_s = 0.0
        """How long the phases took that begin with the import of torch."""

    def next_step(self, remaining_s: float) -> CheckStep | None:
        """Return what is to be done next; None when there is a conclusion."""
        if self._step is not None and self._step.phase in (Phase.FACTS, Phase.SOLO):
            self._import_s = max(self._import_s, self._remaining_s - remaining_s)
        self._remaining_s = remaining_s
        self._close_step()
        self._step = step = plan(self._results)
        if step is None:
            return None
        limit_s = min(remaining_s, self._spec.timeout_s * _SHARES[step.phase])
        if step.phase in (Phase.SUSPECTS, Phase.ALL):
            # A crew that hung was killed: the next one has to import torch again.
            limit_s = min(limit_s + self._import_s, max(limit_s, remaining_s / 2))
        return CheckStep(step.phase.value, step.meetings, limit_s, _progress(self._results, step))

    def answered(self, node_id: str, report: str) -> None:
        """Take what a node says of the present step."""
        try:
            record = record_from_json(report)
        except RecordError as error:
            record = Record(node_id, Phase.FACTS, failure=f"its answer makes no sense: {error}")
        self._take(node_id, record)

    def silent(self, node_id: str, why: str) -> None:
        """A node has not answered in the present step: that is a failure of it."""
        self._take(node_id, Record(node_id, Phase.FACTS, failure=why))

    def lost(self, node_id: str) -> None:
        """A node is gone: that says nothing of those whom it was to meet."""
        self._results = replace(self._results, lost=self._results.lost | {node_id})

    def conclude(self) -> Conclusion:
        """Return the conclusion; before the last step, what is not yet known has failed."""
        self._close_step()
        verdicts = verdict(self._results)
        lenient = not self._spec.is_binding and not self._spec.only
        links = () if lenient else verdicts.bad_links
        findings = {
            found.node: Finding(
                exit_code=0 if lenient else self._exit_code(found),
                sentence=_sentence(found),
                has_met=bool(self._results.passed[found.node]),
            )
            for found in verdicts.nodes
            if found.standing is not Standing.LOST
        }
        report = report_to_json(verdicts, defaults.CHECK_REPORT_MAX_BYTES)
        return Conclusion(findings, links, verdicts.sentence, report)

    def _take(self, node_id: str, record: Record) -> None:
        if self._step is None:
            return
        meeting = next((m for m in self._step.meetings if node_id in m), ())
        partners = tuple(name for name in meeting if name != node_id)
        # What a node says of itself is believed, but not who it is or what it was asked.
        self._records[node_id] = replace(
            record, node=node_id, phase=self._step.phase, partners=partners
        )

    def _close_step(self) -> None:
        if self._step is not None:
            answered = Answered(self._step, self._records)
            self._results = replace(self._results, steps=(*self._results.steps, answered))
        self._step, self._records = None, {}

    def _exit_code(self, found: NodeVerdict) -> int:
        match found.standing:
            case Standing.FAULTY:
                return exit_codes.NODE_EXCLUDED
            case Standing.UNDECIDED:
                return exit_codes.CHECKS_FAILED
            case Standing.LEFT_OUT if self._spec.only:
                return exit_codes.CHECKS_FAILED
            case Standing.SLOW if self._spec.exclude_straggler:
                return exit_codes.NODE_EXCLUDED
        warned = found.standing is Standing.SLOW or found.remarks
        return exit_codes.CHECKS_WARNED if self._spec.is_strict and warned else exit_codes.SUCCESS


def floors(texts: Sequence[str]) -> Metrics:
    """Return the floors that texts such as ``compute_tflops=2.5`` stand for.

    Raises:
        ValueError: one of them names no metric or no number.
    """
    values = {}
    for text in texts:
        name, _, number = text.partition("=")
        values[name] = float(number)
    try:
        return Metrics(**values)
    except TypeError as error:
        raise ValueError(f"no such metric: {error}") from error


def _sentence(found: NodeVerdict) -> str:
    return "; ".join(part for part in (found.reason, *found.remarks) if part)


def _progress(results: Results, step: Step) -> str:
    """Return how far the checks are, in words: the phase, who meets, the slowest so far."""
    count = len(step.meetings)
    what = {
        Phase.FACTS: f"{count} node(s)",
        Phase.SOLO: f"{count} node(s), each alone",
        Phase.PAIR: f"{count} pair(s)",
        Phase.SUSPECTS: f"{count} pair(s), round {results.rounds + 1}",
        Phase.ALL: f"all {len(step.meetings[0])} together" if step.meetings else "",
    }[step.phase]
    return f"{step.phase.value}: {what}{_slowest(results)}"


def _slowest(results: Results) -> str:
    for metric in (*reversed(MEETING_METRICS), "compute_tflops"):
        values = results.best[metric]
        if len(values) > 1:
            pick = max if metric in LOWER_IS_BETTER else min
            node = pick(values, key=lambda name: values[name])
            return f"; slowest so far {node}: {metric_words(metric, values[node])}"
    return ""
