"""Tests of the wire: what is said arrives as it was said, and nonsense is recognized."""

import contextlib
import enum
import types
import typing
from typing import Any

import pytest
from ft_run.protos import rendezvous_pb2 as pb
from ft_run.rendezvous.protocol import messages
from ft_run.rendezvous.protocol.claim import Claim, ClaimState
from ft_run.rendezvous.protocol.failure import Failure, FailureKind
from ft_run.rendezvous.protocol.lease_messages import LeaseAnswer, LeaseAsk, LeaseStep
from ft_run.rendezvous.protocol.messages import (
    Attend,
    Done,
    Failed,
    JobSpec,
    MasterMessage,
    NodeMessage,
    NodeSpec,
    Outcome,
    RoomMessage,
    Stopped,
    Verdict,
)
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.protocol.stacks import RankStack
from ft_run.rendezvous.protocol.steps import RankSteps
from ft_run.rendezvous.transport import codec
from ft_run.rendezvous.work.messages import WorkGrant, WorkReport
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, StructMeta
from msgspec.structs import replace


def _and(union: Any, kind: type) -> tuple[type, ...]:
    """Return the messages of a union, with one that is derived from ``RoomMessage``."""
    return tuple(kind if one is RoomMessage else one for one in typing.get_args(union))


NODE_MESSAGES = _and(NodeMessage, WorkReport)
MASTER_MESSAGES = _and(MasterMessage, WorkGrant)
UINT32 = st.integers(0, 2**32 - 1)
SINT32 = st.integers(-(2**31), 2**31 - 1)

SIGNED = {"rank", "local_rank", "node_rank", "exit_code", "steps"}
"""Fields that may be negative: -1 stands for none, or a signal's number."""


def values_of(hint: Any, owner: type, name: str) -> st.SearchStrategy[Any]:
    """Return a strategy for a field, from its type."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (inner,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        return st.none() | values_of(inner, owner, name)
    if typing.get_origin(hint) is tuple:
        return st.lists(values_of(typing.get_args(hint)[0], owner, name), max_size=3).map(tuple)
    if isinstance(hint, StructMeta):
        return instances(typing.cast(type[Struct], hint))
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    if hint is bool:
        return st.booleans()
    if hint is float:
        return st.floats(allow_nan=False)
    if hint is str:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    assert hint is int
    if name == "time_s":
        return st.integers(0, 2**64 - 1)
    if owner is RankSteps:
        return SINT32 if name == "rank" else UINT32
    return SINT32 if owner in (Failure, RankStack) and name in SIGNED else UINT32


def instances(plain: type[Struct]) -> st.SearchStrategy[Any]:
    """Return a strategy for a message."""
    hints = typing.get_type_hints(plain)
    fields = plain.__struct_fields__
    return st.builds(plain, **{name: values_of(hints[name], plain, name) for name in fields})


@given(st.one_of([instances(plain) for plain in NODE_MESSAGES]))
def test_what_a_node_says_arrives_as_it_was_said(message: NodeMessage) -> None:
    assert codec.decode_node(codec.encode_node(message)) == message


@given(st.one_of([instances(plain) for plain in MASTER_MESSAGES]))
def test_what_the_master_says_arrives_as_it_was_said(message: MasterMessage) -> None:
    assert codec.decode_master(codec.encode_master(message)) == message


@given(st.binary(max_size=60))
def test_garbage_is_decoded_or_refused(data: bytes) -> None:
    for decode in (codec.decode_node, codec.decode_master):
        with contextlib.suppress(codec.WireError, DecodeError):
            decode(data)


ATTEND = Attend(
    protocol=1,
    version="1",
    job=JobSpec("j", 1, 1, 1, 0),
    node=NodeSpec("n", "i", "h", "::1", "r", 1, None),
    offer=Offer("::1", 1),
    claim=Claim(0, "m", 0, 1, 0, 0, "n", ClaimState.RUNNING),
)
FAILURE = Failure(FailureKind.WORKER, 0, 0, 0, "h", 1, 1, 0)


def node_form(message: NodeMessage) -> Any:
    return pb.NodeMessage.FromString(codec.encode_node(message))


def refused(form: Message) -> str:
    with pytest.raises(codec.WireError) as error:
        codec.decode_node(form.SerializeToString())
    return str(error.value)


def test_an_empty_message_is_refused() -> None:
    assert "empty" in refused(pb.NodeMessage())
    with pytest.raises(codec.WireError, match="empty"):
        codec.decode_master(b"")


def test_a_message_of_a_newer_version_is_refused() -> None:
    unknown_body = b"\xfa\x01\x00"  # field 31, length 0
    with pytest.raises(codec.WireError, match="newer version"):
        codec.decode_node(unknown_body)


@pytest.mark.parametrize("part", ["job", "node", "offer"])
def test_a_missing_part_is_refused(part: str) -> None:
    form = node_form(ATTEND)
    form.attend.ClearField(part)
    assert refused(form) == f"Attend without {part}"


def test_missing_parts_are_refused_at_any_depth() -> None:
    form = node_form(Failed(0, FAILURE))
    form.failed.ClearField("failure")
    assert refused(form) == "Failed without failure"
    form = node_form(Stopped(0, Offer("::1", 1)))
    form.stopped.ClearField("offer")
    assert refused(form) == "Stopped without offer"


@pytest.mark.parametrize("value", [0, 99])
def test_unknown_kinds_are_refused(value: int) -> None:
    form = node_form(Failed(0, FAILURE))
    form.failed.failure.kind = value
    assert refused(form) == f"unknown FailureKind {value}"
    form = node_form(ATTEND)
    form.attend.claim.state = value
    assert refused(form) == f"unknown ClaimState {value}"
    verdict = Verdict(Outcome.SUCCEEDED, 0, "", 0, 1, None, (), 0)
    master: Any = pb.MasterMessage.FromString(codec.encode_master(verdict))
    master.verdict.outcome = value
    with pytest.raises(codec.WireError, match=f"unknown Outcome {value}"):
        codec.decode_master(master.SerializeToString())


def test_text_that_is_not_unicode_is_refused() -> None:
    # A job id in field 1 of the job in field 3 of the Attend in field 1, with a lone byte 0xff.
    with pytest.raises(DecodeError):
        codec.decode_node(b"\x0a\x05\x1a\x03\x0a\x01\xff")


def test_fields_that_are_not_known_yet_are_ignored() -> None:
    data = codec.encode_node(Done(3))
    # Field 1000 of the inner message, as a newer version may have it.
    assert data == b"\x1a\x02\x08\x03"
    assert codec.decode_node(b"\x1a\x05\x08\x03\xc0\x3e\x01") == Done(3)


def test_bytes_of_a_command_line_that_are_not_unicode_become_visible() -> None:
    # os.fsdecode makes such texts: of arguments, paths and host names.
    message = Failed(0, replace(FAILURE, error_file="/tmp/\udcff/é"))
    decoded = codec.decode_node(codec.encode_node(message))
    assert isinstance(decoded, Failed)
    assert decoded.failure.error_file == r"/tmp/\udcff/é"


def test_what_a_field_cannot_hold_is_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match=r"range|Value"):
        codec.encode_node(Done(-1))


# --- names and fields agree ----------------------------------------------------------------------


def plain_types() -> list[type[Struct]]:
    """Return every message class and its parts."""
    found: dict[type[Struct], None] = {}

    def visit(hint: Any) -> None:
        for arg in typing.get_args(hint):
            visit(arg)
        if isinstance(hint, StructMeta) and hint not in found:
            found[typing.cast(type[Struct], hint)] = None
            for inner in typing.get_type_hints(hint).values():
                visit(inner)

    for message in (*NODE_MESSAGES, *MASTER_MESSAGES):
        visit(message)
    return list(found)


@pytest.mark.parametrize("plain", plain_types(), ids=lambda plain: plain.__name__)
def test_names_and_fields_agree(plain: type[Struct]) -> None:
    form = pb.DESCRIPTOR.message_types_by_name[plain.__name__]
    hints = typing.get_type_hints(plain)
    assert [*plain.__struct_fields__] == [f.name for f in form.fields]
    for field in form.fields:
        hint = hints[field.name]
        optional = typing.get_origin(hint) in (typing.Union, types.UnionType)
        assert optional == (field.containing_oneof is not None), field.name
        repeated = typing.get_origin(hint) is tuple
        assert repeated == (_is_repeated(field)), field.name


def _is_repeated(field: Any) -> bool:
    # `label` is deprecated in newer versions of protobuf, `is_repeated` is missing in older ones.
    if hasattr(FieldDescriptor, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)


@pytest.mark.parametrize("plain", [FailureKind, ClaimState, Outcome, LeaseStep])
def test_kinds_agree(plain: type[enum.Enum]) -> None:
    form = pb.DESCRIPTOR.enum_types_by_name[plain.__name__]
    prefix = "".join("_" + c if c.isupper() else c.upper() for c in plain.__name__)[1:] + "_"
    assert {value.name: value.number for value in form.values} == {
        f"{prefix}UNSPECIFIED": 0,
        **{f"{prefix}{member.name}": member.value for member in plain},
    }


@pytest.mark.parametrize(
    ("wrapper", "plains"), [("NodeMessage", NODE_MESSAGES), ("MasterMessage", MASTER_MESSAGES)]
)
def test_everything_that_is_said_has_its_place(wrapper: str, plains: tuple[type, ...]) -> None:
    form = pb.DESCRIPTOR.message_types_by_name[wrapper]
    kinds = [field.message_type for field in form.fields]
    assert [kind and kind.name for kind in kinds] == [plain.__name__ for plain in plains]


def test_nothing_in_the_proto_is_forgotten() -> None:
    known = {plain.__name__ for plain in plain_types()}
    envelopes = {"NodeMessage", "MasterMessage", "StatusRequest", "StatusReply", "NodeStatus"}
    envelopes |= {"StacksRequest", "StacksReply", "StackGroup", "WorkProgress"}
    envelopes |= {plain.__name__ for plain in (LeaseAsk, LeaseAnswer)}
    assert set(pb.DESCRIPTOR.message_types_by_name) == known | envelopes
    assert messages.PROTOCOL_VERSION == 1


def test_what_listed_hosts_say_comes_through() -> None:
    ask = LeaseAsk(LeaseStep.END, 2, "p", 7, 4, 3000, round=-1, exit_code=-9)
    assert codec.decode(LeaseAsk, codec.encode(ask)) == ask
    answer = LeaseAnswer(True, 9, True, 3, -1)
    assert codec.decode(LeaseAnswer, codec.encode(answer)) == answer
