"""Records as JSON: there and back, and what is not believed."""

import json

import pytest
from ft_run.checks.records import (
    Metrics,
    Phase,
    Record,
    RecordError,
    record_from_json,
    record_to_json,
)

RECORDS = (
    Record("a", Phase.FACTS, facts={"clock_offset_s": 0.01, "torch": "2.13", "gpus": 8}),
    Record("a", Phase.SOLO, metrics=Metrics(compute_tflops=1.5, intra_gb_per_s=0.0)),
    Record("a", Phase.PAIR, "all-reduce gave 3, not 4\nüber", Metrics(latency_us=3)),
    Record("a", Phase.ALL),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.phase.value)
def test_a_record_survives_its_json(record: Record) -> None:
    line = record_to_json(record)
    assert "\n" not in line
    assert record_from_json(line) == record
    assert record_from_json(line.encode()) == record


def test_what_is_empty_is_not_written() -> None:
    assert json.loads(record_to_json(RECORDS[3])) == {"node": "a", "phase": "all"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ('{"node": "a"}', "phase must be one of facts, solo, pair, suspects, all"),
        ('{"node": 1, "phase": "pair"}', "node must be a text"),
        ('{"node": "a", "phase": "duo"}', "'duo'"),
        ('{"node": "a", "phase": "pair", "colour": 1}', "unknown parts: colour"),
        ('{"node": "a", "phase": "pair", "failure": null}', "failure must be a text"),
        ('{"node": "a", "phase": "pair", "metrics": []}', "metrics must be an object"),
        ('{"node": "a", "phase": "pair", "metrics": {"speed": 1}}', "unknown metrics: speed"),
        ('{"node": "a", "phase": "pair", "metrics": {"latency_us": "1"}}', "must be a number"),
        ('{"node": "a", "phase": "pair", "metrics": {"latency_us": true}}', "must be a number"),
        ('{"node": "a", "phase": "pair", "metrics": {"latency_us": NaN}}', "must be finite"),
        ('{"node": "a", "phase": "pair", "metrics": {"latency_us": -1}}', "not negative"),
        (
            '{"node": "a", "phase": "pair", "metrics": {"latency_us": 1' + "0" * 400 + "}}",
            "too large",
        ),
        ('{"node": "a", "phase": "facts", "facts": {"x": null}}', "the fact x"),
        ('{"node": "a", "phase": "facts", "facts": {"x": false}}', "the fact x"),
        ('{"node": "a", "phase": "facts", "facts": {"x": Infinity}}', "the fact x"),
    ],
)
def test_what_is_no_record_is_refused(text: str, says: str) -> None:
    with pytest.raises(RecordError, match=says):
        record_from_json(text)


def test_a_number_that_is_none_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        record_to_json(Record("a", Phase.SOLO, metrics=Metrics(compute_tflops=float("nan"))))
