"""The progress of a job in Kubeflow's TrainJob, against a server that behaves as Kubeflow's."""

import asyncio
import json
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from ft_run.events.event import Event, Severity
from ft_run.events.metrics import ProgressUnsent
from ft_run.launcher.metrics import trainjob
from ft_run.launcher.metrics.status_server import StatusServer, refused
from ft_run.launcher.metrics.trainjob import Status, trainjob_progress
from ft_run.launcher.processes.worker_watch import Progress
from ft_run.tests.harness.status_server import KubeflowServer, problem


@pytest.fixture
def kubeflow(tmp_path: Path) -> Iterator[KubeflowServer]:
    server = KubeflowServer(tmp_path)
    yield server
    server.close()


def client(kubeflow: KubeflowServer, **changes: Any) -> StatusServer:
    values: dict[str, Any] = {"url": kubeflow.url, "ca_file": str(kubeflow.ca_file)}
    values |= {"token_file": str(kubeflow.token_file), "first_pause_s": 0.01}
    return StatusServer(**(values | changes))


def text(step: int) -> bytes:
    return Status(step, 100).body(0.0)


# --- the body ----------------------------------------------------------------------------------


def test_a_body_has_what_is_known() -> None:
    found = json.loads(Status(45, 100, 0.5, restarts=1).body(1_780_000_000))
    assert found == {
        "trainerStatus": {
            "lastUpdatedTime": "2026-05-28T20:26:40Z",
            "progressPercentage": 45,
            "estimatedRemainingSeconds": 110,
            "metrics": [
                {"name": "current_step", "value": "45"},
                {"name": "restarts", "value": "1"},
                {"name": "total_steps", "value": "100"},
                {"name": "steps_per_second", "value": "0.5"},
            ],
        }
    }


@pytest.mark.parametrize(
    ("status", "percentage", "left_s"),
    [
        (Status(7), None, None),
        (Status(7, 100), 7, None),
        (Status(100, 100, 2.0), 99, 0),
        (Status(130, 100, 2.0), 99, 0),
        (Status(1, 10**18, 1e-9), 0, 2**31 - 1),
        (Status(7, is_complete=True), 100, 0),
    ],
)
def test_percentage_and_time_left(
    status: Status, percentage: int | None, left_s: int | None
) -> None:
    assert (status.percentage, status.remaining_s) == (percentage, left_s)
    assert problem(json.loads(status.body(0.0))["trainerStatus"]) == ""


# --- requests ----------------------------------------------------------------------------------


def test_a_rotated_token_is_read_again(kubeflow: KubeflowServer) -> None:
    server = client(kubeflow)
    server.put(text(1))
    kubeflow.await_requests(lambda: len(kubeflow.received) == 1)
    kubeflow.rotate("token-2")
    server.put(text(2))
    kubeflow.await_requests(lambda: len(kubeflow.received) == 2)
    server.close()
    assert [status["progressPercentage"] for _, status in kubeflow.received] == [1, 2]
    assert kubeflow.refused == []
    assert server.failure() is None


def test_a_server_that_is_busy_is_asked_again_when_it_says(kubeflow: KubeflowServer) -> None:
    kubeflow.next_answers = [(429, {"Retry-After": "1"}), (503, {}), (500, {})]
    server = client(kubeflow)
    server.put(text(1))
    kubeflow.await_requests(lambda: kubeflow.refused == [429])
    server.put(text(2))
    kubeflow.await_requests(lambda: kubeflow.refused == [429, 503])
    server.put(text(3))
    kubeflow.await_requests(lambda: kubeflow.refused == [429, 503, 500])
    server.put(text(4))
    kubeflow.await_requests(lambda: len(kubeflow.received) == 1)
    server.close()
    assert [status["progressPercentage"] for _, status in kubeflow.received] == [4]
    # One report for the whole outage.
    assert server.failure() == (kubeflow.url, "429 Too Many Requests", Severity.DEBUG)
    assert server.failure() is None


@pytest.mark.parametrize("status", [404, 410, 422])
def test_a_trainjob_that_is_gone_is_left_alone(kubeflow: KubeflowServer, status: int) -> None:
    kubeflow.next_answers = [(status, {})]
    server = client(kubeflow)
    server.put(text(1))
    kubeflow.await_requests(lambda: server.is_refused)
    server.put(text(2))
    server.close()
    assert (kubeflow.received, kubeflow.refused) == ([], [status])
    failure = server.failure()
    assert failure is not None
    assert failure.severity is Severity.WARNING


def test_a_token_that_is_not_accepted_is_a_warning(kubeflow: KubeflowServer) -> None:
    kubeflow.token_file.write_text("of another TrainJob")
    server = client(kubeflow)
    server.put(text(1))
    kubeflow.await_requests(lambda: kubeflow.refused == [403])
    server.close()
    assert server.failure() == (kubeflow.url, "403 Forbidden", Severity.WARNING)


@pytest.mark.parametrize(
    ("given", "pause_s"),
    [
        ("1", 1.0),
        ("3600", 600.0),
        ("", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 600.0),
    ],
)
def test_the_pause_that_a_server_asks_for(given: str, pause_s: float | None) -> None:
    headers = Message()
    headers["Retry-After"] = given
    assert refused(429, headers).pause_s == pause_s


def test_a_redirection_does_not_get_the_token(kubeflow: KubeflowServer) -> None:
    kubeflow.next_answers = [(307, {"Location": kubeflow.url}), (302, {"Location": kubeflow.url})]
    server = client(kubeflow)
    server.put(text(1))
    kubeflow.await_requests(lambda: kubeflow.refused == [307])
    server.put(text(2))
    kubeflow.await_requests(lambda: kubeflow.refused == [307, 302])
    server.close()
    assert kubeflow.received == []


def test_who_the_token_is_for(kubeflow: KubeflowServer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    stranger = KubeflowServer(other)
    reasons = []
    for changes in (
        {"ca_file": str(stranger.ca_file)},
        {"ca_file": "/nonexistent"},
        {"token_file": "/nonexistent"},
        {"url": kubeflow.url.replace("https", "http")},
        {"url": kubeflow.url.replace("localhost", "127.0.0.1")},
    ):
        server = client(kubeflow, **changes)
        server.put(text(1))
        server.close(30)
        failure = server.failure()
        assert failure is not None
        reasons.append(failure.reason)
    stranger.close()
    assert (kubeflow.received, kubeflow.refused) == ([], [])
    assert "CERTIFICATE_VERIFY_FAILED" in reasons[0]
    assert "No such file" in reasons[1]
    assert "No such file" in reasons[2]
    assert reasons[3] == "the URL is not https"
    assert "IP address mismatch" in reasons[4]


def test_a_server_that_is_gone_costs_nothing(kubeflow: KubeflowServer, tmp_path: Path) -> None:
    other = tmp_path / "gone"
    other.mkdir()
    gone = KubeflowServer(other)
    gone.close()
    server = client(gone)
    for step in range(1000):
        server.put(text(step))
    server.close(30)
    failure = server.failure()
    assert failure is not None
    assert failure.severity is Severity.DEBUG
    assert "Connection refused" in failure.reason


# --- of a node ---------------------------------------------------------------------------------


class Watch:
    def __init__(self) -> None:
        self.steps, self.total, self.is_sent_by_itself = 0, 0, False

    def progress(self) -> Progress:
        return Progress(1, self.steps, self.steps, 1.0, 0.1, self.steps, 0.25)

    def trainjob(self) -> tuple[int, bool]:
        return self.total, self.is_sent_by_itself


class Worker:
    def __init__(self, rank: int) -> None:
        self.rank, self.watch = rank, Watch()


class Node:
    """What is read of an agent."""

    def __init__(self, *ranks: int) -> None:
        self.running: Any = tuple(map(Worker, ranks))
        self.assignment: Any = type("Assignment", (), {"restarts": 2})()


def run(kubeflow: KubeflowServer, node: Any, *, has_succeeded: bool) -> list[Event]:
    """Let a node train for a while, which takes 10 steps."""
    events: list[Event] = []

    async def test() -> None:
        progress = trainjob_progress(kubeflow.environ(), node, events.append)
        assert progress is not None
        for _ in range(10):
            await asyncio.sleep(0.04)
            for worker in node.running:
                worker.watch.steps += 1
        await progress.close(has_succeeded=has_succeeded)

    asyncio.run(test())
    return events


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainjob, "INTERVAL_S", 0.12)


def test_a_node_with_rank_0_shows_the_progress(kubeflow: KubeflowServer) -> None:
    node = Node(0, 1)
    node.running[0].watch.total = 20
    assert run(kubeflow, node, has_succeeded=True) == []
    shown = [status for _, status in kubeflow.received]
    assert 2 <= len(shown) <= 4 + 1  # not one for each step
    *before, last = [status["progressPercentage"] for status in shown]
    assert before == sorted(set(before))
    assert all(0 < one < 100 for one in before)
    assert last == 100
    assert {"name": "restarts", "value": "2"} in shown[-1]["metrics"]


def test_a_job_that_fails_does_not_arrive(kubeflow: KubeflowServer) -> None:
    run(kubeflow, Node(0), has_succeeded=False)
    assert kubeflow.received
    assert not any("progressPercentage" in status for _, status in kubeflow.received)


def test_what_the_framework_sends_itself_is_not_sent_again(kubeflow: KubeflowServer) -> None:
    node = Node(0)
    node.running[0].watch.is_sent_by_itself = True
    run(kubeflow, node, has_succeeded=True)
    assert kubeflow.received == []


def test_only_the_node_with_rank_0_sends(kubeflow: KubeflowServer) -> None:
    run(kubeflow, Node(2, 3), has_succeeded=True)
    assert kubeflow.received == []


@pytest.mark.parametrize("is_assigned", [False, True])
def test_before_the_first_step_of_a_round_nothing_is_sent(
    kubeflow: KubeflowServer, monkeypatch: pytest.MonkeyPatch, *, is_assigned: bool
) -> None:
    node = Node(0)
    if is_assigned:
        still = Progress(1, 0, 0, 1.0, 0.1, 0, 0.0)
        monkeypatch.setattr(node.running[0].watch, "progress", lambda: still)
    else:
        node.assignment = None
    run(kubeflow, node, has_succeeded=False)
    assert kubeflow.received == []


def test_what_has_not_changed_is_not_sent_again(
    kubeflow: KubeflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(0)
    still = Progress(1, 7, 7, 1.0, 0.1, 7, 0.25)
    monkeypatch.setattr(node.running[0].watch, "progress", lambda: still)
    run(kubeflow, node, has_succeeded=False)
    assert len(kubeflow.received) == 1


def test_a_refusal_is_one_event(kubeflow: KubeflowServer) -> None:
    kubeflow.next_answers = [(404, {})] * 10
    assert run(kubeflow, Node(0), has_succeeded=True) == [
        ProgressUnsent(kubeflow.url, "404 Not Found", Severity.WARNING)
    ]
    assert kubeflow.refused == [404]


def test_outside_of_a_trainjob_nothing_is_sent(kubeflow: KubeflowServer) -> None:
    node: Any = Node(0)
    for missing in kubeflow.environ():
        environ = {**kubeflow.environ(), missing: ""}
        assert trainjob_progress(environ, node, lambda _: None) is None
    environ = {**kubeflow.environ(), "DISABLE_KUBEFLOW_INTEGRATION": "true"}
    assert trainjob_progress(environ, node, lambda _: None) is None
