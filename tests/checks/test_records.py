"""Records as JSON: there and back, and what is not believed."""

import json

import pytest
from ft_run.checks.records import (
    Phase,
    Record,
    RecordError,
    record_from_json,
    record_to_json,
)

RECORDS = (
    Record("a", Phase.FACTS, facts={"clock_offset_s": 0.01, "torch": "2.13", "gpus": 8}),
    Record("a", Phase.SOLO, metrics={"compute_tflops": 1.5, "intra_gb_per_s": 0.0}),
    Record("a", Phase.PAIR, "all-reduce gave 3, not 4\nüber", {"latency_us": 3}),
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
    "text",
    [
        *("", "[" * 100_000, "[]", '{"node": "a"}', '{"node": 1, "phase": "pair"}'),
        '{"node": "a", "phase": "duo"}',
        '{"node": "a", "phase": "pair", "colour": 1}',
        '{"node": "a", "phase": "pair", "failure": null}',
        '{"node": "a", "phase": "pair", "metrics": []}',
        '{"node": "a", "phase": "pair", "metrics": {"speed": 1}}',
        '{"node": "a", "phase": "pair", "metrics": {"latency_us": "1"}}',
        '{"node": "a", "phase": "pair", "metrics": {"latency_us": true}}',
        '{"node": "a", "phase": "pair", "metrics": {"latency_us": NaN}}',
        '{"node": "a", "phase": "pair", "metrics": {"latency_us": -1}}',
        '{"node": "a", "phase": "pair", "metrics": {"latency_us": 1' + "0" * 400 + "}}",
        '{"node": "a", "phase": "facts", "facts": {"x": null}}',
        '{"node": "a", "phase": "facts", "facts": {"x": []}}',
        '{"node": "a", "phase": "facts", "facts": {"x": false}}',
        '{"node": "a", "phase": "facts", "facts": {"x": Infinity}}',
    ],
)
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="not a record of a check: "):
        record_from_json(text)


def test_a_number_that_is_none_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        record_to_json(Record("a", Phase.SOLO, metrics={"compute_tflops": float("nan")}))
