"""``ft-run status`` and ``ft-run stacks`` of a server that answers nonsense."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from ft_run import exit_codes
from ft_run.launcher.main import main
from ft_run.protos import rendezvous_pb2 as pb
from ft_run.tests.harness.hostile_master import hostile_master

ANSWERS: dict[str, bytes] = {}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with hostile_master(ANSWERS) as endpoint:
        yield endpoint


def node(**fields: Any) -> pb.NodeStatus:
    given = {"node_id": "h/0", "host": "h", "phase": "running", "attached": True}
    return pb.NodeStatus(**{**given, "local_world_size": 1, **fields})


def status(**fields: Any) -> bytes:
    given: dict[str, Any] = {"job_id": "j", "phase": "running", "nodes": [node()]}
    answer: bytes = pb.StatusReply(**{**given, **fields}).SerializeToString()
    return answer


def steps(**fields: Any) -> bytes:
    return status(nodes=[node(workers=[pb.RankSteps(**fields)])])


def stacks(**fields: Any) -> bytes:
    group = pb.StackGroup(ranks=[0], stack=pb.RankStack(**{"state": 1, **fields}))
    return pb.StacksReply(groups=[group]).SerializeToString()


INVALID_STATUS = {
    "no protobuf": b"\xff\xff\xff",
    "half a message": status()[:-3],
    "text that is not UTF-8": b"\x0a\x02\xff\xfe",
    "uptime is NaN": status(uptime_s=math.nan),
    "uptime is infinite": status(uptime_s=math.inf),
    "uptime is negative": status(uptime_s=-1.0),
    "round uptime is infinite": status(round_uptime_s=math.inf),
    "age of the checkpoint is infinite": status(checkpoint_step=5, checkpoint_age_s=math.inf),
    "step of the checkpoint is huge": status(checkpoint_step=2**64 - 1),
    "lease is NaN": status(hosts=["a", "b"], leader="a", lease_s=math.nan),
    "round is negative": status(round=-5),
    "exit code is 300": status(exit_code=300),
    "rank is negative": status(nodes=[node(node_rank=-7)]),
    "steps are huge": steps(steps=2**64 - 1),
    "rate is NaN": steps(steps=5, steps_per_s=math.nan),
    "rate is infinite": steps(steps=5, steps_per_s=math.inf),
    "idle time is infinite": steps(steps=5, idle_s=math.inf),
    "wait for data is NaN": steps(steps=5, data_wait=math.nan),
    "time left is infinite": status(
        work=[pb.WorkProgress(name="w", done=1, size=2, per_s=1.0, left_s=math.inf)]
    ),
    "work has a huge size": status(work=[pb.WorkProgress(name="w", size=2**64 - 1)]),
    "text is too long": status(job_id="x" * 100_000),
}


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
@pytest.mark.parametrize("answer", INVALID_STATUS.values(), ids=INVALID_STATUS)
def test_invalid_status_is_one_error(
    endpoint: str, capfd: pytest.CaptureFixture[str], answer: bytes, form: tuple[str, ...]
) -> None:
    ANSWERS["Status"] = answer
    assert main(["status", endpoint, *form]) == exit_codes.RENDEZVOUS_FAILED
    out, error = capfd.readouterr()
    assert not out
    assert error.startswith(f"ft-run: error: the answer of the server at {endpoint} is invalid: ")
    assert error.endswith("; expected the ft-run master of the job, of the same version.\n")
    assert error.count("\n") == 1


REPORTS: dict[str, str] = {
    "no JSON": "{",
    "deep JSON": "[" * 100_000,
    "a list": "[1]",
    "a number": "1",
    "null": "null",
    "NaN": '{"summary": {"training": {"data_wait": NaN}}}',
    "an infinite number": '{"time_s": 1e999}',
    "summary is a text": '{"summary": "x"}',
    "part of the summary is a list": '{"summary": {"saves": [1]}}',
    "checkpoint without a step": '{"summary": {"saves": {"checkpoint": {"at_s": 1}}}}',
    "restart without a cause": '{"summary": {"restarts": {"count": 1, "last": [{"at_s": 1}]}}}',
    "restarts without a list": '{"summary": {"restarts": {"count": 1}}}',
    "nodes are numbers": '{"summary": {"nodes": {"lost": [1, 2]}}}',
    "nodes are a number": '{"summary": {"nodes": {"missing": 5}}}',
    "advice without a text": '{"summary": {"advice": [{}]}}',
    "events are a number": '{"events": 5}',
    "events are numbers": '{"events": [5]}',
    "severity is a list": '{"events": [{"severity": []}]}',
    "age is a text": '{"summary": {"saves": {"snapshot_step": 1, "snapshot_at_s": "x"}}}',
}


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_invalid_report_in_a_status_is_ignored(
    endpoint: str, capfd: pytest.CaptureFixture[str], report: str, form: tuple[str, ...]
) -> None:
    ANSWERS["Status"] = status(report=report)
    assert main(["status", endpoint, *form]) == 0
    out, error = capfd.readouterr()
    assert not error
    if form:
        answer = json.loads(out, parse_constant=pytest.fail)
        assert (answer["job_id"], answer["summary"], answer["events"]) == ("j", None, [])
    else:
        assert "job j · running" in out


def test_report_of_a_master_is_kept(endpoint: str, capfd: pytest.CaptureFixture[str]) -> None:
    summary = {"advice": [{"text": "use more workers"}], "training": {"data_wait": 0.5}}
    ANSWERS["Status"] = status(report=json.dumps({"summary": summary}))
    assert main(["status", endpoint]) == 0
    assert "advice: use more workers" in capfd.readouterr().out


def test_odd_status_is_shown(endpoint: str, capfd: pytest.CaptureFixture[str]) -> None:
    work = pb.WorkProgress(name="w", done=1, size=0)
    ANSWERS["Status"] = status(work=[work], phase="\x1b[2J", hosts=["a"], leader="::[x")
    for form in ((), ("--json",)):
        assert main(["status", endpoint, *form]) == 0
        out, error = capfd.readouterr()
        assert not error
        assert "\x1b" not in out


INVALID_STACKS = {
    "no protobuf": b"\xff\xff\xff",
    "a group without a stack": pb.StacksReply(groups=[pb.StackGroup()]).SerializeToString(),
    "unknown state": stacks(state=99),
    "host has control characters": stacks(host="\x1b]0;title\x07"),
    "steps are negative": stacks(steps=-9),
    "line is huge": stacks(frames=[pb.Frame(file="f", line=2**32 - 1, function="g")]),
    "too many frames": stacks(frames=[pb.Frame(file="f", function="g")] * 1000),
}


@pytest.mark.parametrize("answer", INVALID_STACKS.values(), ids=INVALID_STACKS)
def test_invalid_stacks_are_one_error(
    endpoint: str, capfd: pytest.CaptureFixture[str], answer: bytes
) -> None:
    ANSWERS.update(Status=status(), Stacks=answer)
    assert main(["stacks", endpoint]) == exit_codes.RENDEZVOUS_FAILED
    error = capfd.readouterr().err
    assert error.startswith(f"ft-run: error: the answer of the server at {endpoint} is invalid: ")
    assert error.count("\n") == 1


def test_stacks_without_a_rank_are_shown(endpoint: str, capfd: pytest.CaptureFixture[str]) -> None:
    ANSWERS.update(Status=status(), Stacks=b"")
    assert main(["stacks", endpoint]) == 0
    assert "none of the requested workers is running" in capfd.readouterr().out
