"""The schema of events: every class can be written, is valid, and loses nothing."""

import enum
import json
import re
import typing
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any

import jsonschema
import pytest
from ft_run.events import schema
from ft_run.events.event import Event, EventsLost, LogMessage, Severity
from ft_run.events.record import ENVELOPE, VERSION, fields_of
from ft_run.events.workers import HangSuspected, WorkerFailed, WorkersStarted
from ft_run.launcher.history.recorder import Recorder, line_of
from ft_run.rendezvous.protocol.failure import node_lost

VALIDATOR = jsonschema.Draft202012Validator(schema.json_schema())
CLASSES = list(schema.event_classes())


def sample(hint: Any) -> Any:
    """Return a value of a type; each has a content that could get lost on the way."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return "ä"
    if origin in (UnionType, typing.Union):
        return sample(next(one for one in arguments if one is not NoneType))
    if origin is tuple:
        return (sample(arguments[0]),)
    if origin is not None and issubclass(origin, Mapping):
        return {"GPU-1": sample(arguments[1])}
    if issubclass(hint, enum.Enum):
        return list(hint)[-1]
    simple = {bool: True, int: 2**60 + 1, float: 0.1, str: 'ä "\n\u2028\x1b'}
    if hint in simple:
        return simple[hint]
    hints = typing.get_type_hints(hint)
    return hint(**{name: sample(hints[name]) for name in hint.__struct_fields__})


def written(event: Event) -> bytes:
    return line_of(Recorder("job", 3).record(event))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.name)
def test_an_event_is_written_whole_and_valid(kind: type[Event]) -> None:
    event = sample(kind)
    line = written(event)
    assert line.count(b"\n") == 1
    record = json.loads(line)
    VALIDATOR.validate(record)
    assert list(ENVELOPE) == [name for name in record if name in ENVELOPE]
    assert (record["name"], record["version"], record["attempt"]) == (kind.name, 1, 3)
    assert fields_of(event).items() <= record.items()


def test_names_are_unique_and_have_a_subject() -> None:
    found = [kind.name for kind in CLASSES]
    assert len({*found}) == len(found)
    for name in found:
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", name)


def test_no_field_has_the_name_of_a_key_of_every_line() -> None:
    for kind in CLASSES:
        allowed = {"round", "severity"}  # which mean the same
        assert not {*kind.__struct_fields__} & {*ENVELOPE} - allowed, kind


def test_every_module_of_events_is_in_the_schema() -> None:
    assert {WorkerFailed, EventsLost, LogMessage} <= {*CLASSES}
    assert not {kind.__name__ for kind in all_events(Event)} - {kind.__name__ for kind in CLASSES}


def all_events(kind: type[Event]) -> typing.Iterator[type[Event]]:
    for child in type.__subclasses__(kind):
        # The metaclass makes each class twice: the plain one has no name of a file either.
        if child.name and "_dataclass_parts" in vars(child):
            yield child
        yield from all_events(child)


def test_a_line_without_what_a_later_release_added_is_valid() -> None:
    record = json.loads(written(WorkersStarted(1, 0, 0, (5,), 1, 1, "h", 2, None)))
    VALIDATOR.validate({**record, "added": {"by": "a later release"}})
    VALIDATOR.validate({**record, "name": "node.teleported"})
    failed = json.loads(written(WorkerFailed(1, 0, node_lost(1, "h", "r", "why"))))
    del failed["failure"]["after_stop"]  # it has a default
    VALIDATOR.validate(failed)


def test_another_version_is_refused() -> None:
    record = json.loads(written(EventsLost(1, "x"))) | {"version": VERSION + 1}
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(record)


def test_a_line_with_a_wrong_field_is_not_valid() -> None:
    record = json.loads(written(EventsLost(1, "x")))
    for wrong in ({**record, "lines": "1"}, {k: v for k, v in record.items() if k != "lines"}):
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(wrong)


def test_a_number_that_is_not_finite_is_null() -> None:
    event = HangSuspected(1, 0, (2,), float("inf"))
    assert json.loads(written(event))["idle_s"] is None


def test_a_name_that_is_no_utf_8_is_written() -> None:
    assert b'"sentence":"a?b"' in written(LogMessage("a\udcffb", Severity.INFO))
