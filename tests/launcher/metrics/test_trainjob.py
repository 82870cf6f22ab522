"""The progress of a job in Kubeflow's TrainJob, against a server that behaves as Kubeflow's."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ft_run.events.event import Event, Severity
from ft_run.events.metrics import ProgressUnsent
from ft_run.launcher.agent import run as agent_run
from ft_run.launcher.metrics import trainjob
from ft_run.launcher.metrics.status_server import NotSentError, Request, StatusServer
from ft_run.launcher.metrics.trainjob import Status, trainjob_progress
from ft_run.launcher.processes.worker_watch import Progress
from ft_run.rendezvous.protocol.messages import Outcome, Verdict
from ft_run.tests.harness.status_server import KubeflowServer, problem


@pytest.fixture
def kubeflow(tmp_path: Path) -> Iterator[KubeflowServer]:
    server = KubeflowServer(tmp_path)
    yield server
    server.close()


def sent(kubeflow: KubeflowServer, **changes: Any) -> NotSentError | None:
    """Send a request; return its error."""
    server = StatusServer(kubeflow.url, str(kubeflow.ca_file), str(kubeflow.token_file))
    request = Request(server._replace(**changes), Status(1, 100).body(0.0))
    request.join(60.0)
    assert not request.is_alive()
    return request.error


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
    assert sent(kubeflow) is None
    kubeflow.rotate("token-2")
    assert sent(kubeflow) is None
    assert len(kubeflow.received) == 2


@pytest.mark.parametrize(
    ("status", "reason", "severity"),
    [
        (429, "429 Too Many Requests", Severity.DEBUG),
        (503, "503 Service Unavailable", Severity.DEBUG),
        (404, "404 Not Found", Severity.WARNING),
        (499, "499 refused", Severity.WARNING),
    ],
)
def test_what_an_answer_means(
    kubeflow: KubeflowServer, status: int, reason: str, severity: Severity
) -> None:
    kubeflow.next_answers = [(status, {})]
    error = sent(kubeflow)
    assert error is not None
    assert (str(error), error.severity) == (reason, severity)


def test_a_redirection_does_not_get_the_token(kubeflow: KubeflowServer) -> None:
    for status in (307, 302):
        kubeflow.next_answers = [(status, {"Location": kubeflow.url})]
        assert sent(kubeflow) is not None
    assert (kubeflow.received, kubeflow.refused) == ([], [307, 302])


def test_who_the_token_is_for(kubeflow: KubeflowServer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    stranger = KubeflowServer(other)
    stranger.close()
    reasons = [
        str(sent(kubeflow, **changes))
        for changes in (
            {"ca_file": str(stranger.ca_file)},
            {"ca_file": "/nonexistent"},
            {"token_file": "/nonexistent"},
            {"url": kubeflow.url.replace("https", "http")},
            {"url": kubeflow.url.replace("localhost", "127.0.0.1")},
            {"url": stranger.url},
        )
    ]
    assert (kubeflow.received, kubeflow.refused) == ([], [])
    assert "CERTIFICATE_VERIFY_FAILED" in reasons[0]
    assert "No such file" in reasons[1]
    assert "No such file" in reasons[2]
    assert reasons[3] == "the URL is not https"
    assert "IP address mismatch" in reasons[4]
    assert "Connection refused" in reasons[5]


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


@pytest.mark.parametrize("is_trainjob", [True, False])
def test_node_reports_its_progress_only_in_a_trainjob(
    kubeflow: KubeflowServer, monkeypatch: pytest.MonkeyPatch, is_trainjob: bool
) -> None:
    for name, value in kubeflow.environ().items():
        if is_trainjob:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)
    node: Any = Node(0, 1)
    node.verdict = Verdict(Outcome.SUCCEEDED, 0, "", 0, 1, None, (), 0)
    node.running[0].watch.total, node.running[0].watch.steps = 20, 3

    async def test() -> None:
        events: list[Event] = []
        display: Any = SimpleNamespace(event=events.append)
        async with agent_run._shown_in_trainjob(node, display):
            if is_trainjob:
                await asyncio.to_thread(kubeflow.await_requests, lambda: bool(kubeflow.received))
        assert events == []

    asyncio.run(test())
    shown = [status["progressPercentage"] for _, status in kubeflow.received]
    assert shown == ([15, 100] if is_trainjob else [])


def test_a_job_that_fails_does_not_arrive(kubeflow: KubeflowServer) -> None:
    run(kubeflow, Node(0), has_succeeded=False)
    assert kubeflow.received
    assert not any("progressPercentage" in status for _, status in kubeflow.received)


STILL = Progress(1, 0, 0, 1.0, 0.1, 0, 0.0)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda node: setattr(node.running[0].watch, "is_sent_by_itself", True),
            id="the framework sends it",
        ),
        pytest.param(lambda node: setattr(node, "running", node.running[1:]), id="no rank 0"),
        pytest.param(lambda node: setattr(node, "assignment", None), id="no round"),
        pytest.param(
            lambda node: setattr(node.running[0].watch, "progress", lambda: STILL), id="no step"
        ),
    ],
)
def test_nothing_to_send(kubeflow: KubeflowServer, change: Callable[[Node], None]) -> None:
    node = Node(0, 1)
    change(node)
    run(kubeflow, node, has_succeeded=True)
    assert kubeflow.received == []


def test_what_has_not_changed_is_not_sent_again(
    kubeflow: KubeflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(0)
    still = Progress(1, 7, 7, 1.0, 0.1, 7, 0.25)
    monkeypatch.setattr(node.running[0].watch, "progress", lambda: still)
    run(kubeflow, node, has_succeeded=False)
    assert len(kubeflow.received) == 1


def test_an_outage_is_one_event_and_one_if_it_gets_worse(
    kubeflow: KubeflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainjob, "_PAUSE_MAX_S", 0.01)
    kubeflow.next_answers = [(503, {}), (503, {}), (404, {}), (404, {})]
    events: list[Event] = []
    node: Any = Node(0)
    node.running[0].watch.steps = 7

    async def test() -> None:
        progress = trainjob_progress(kubeflow.environ(), node, events.append)
        assert progress is not None
        await asyncio.to_thread(kubeflow.await_requests, lambda: bool(kubeflow.received))
        await progress.close(has_succeeded=False)

    asyncio.run(asyncio.wait_for(test(), 60.0))
    assert events == [
        ProgressUnsent(kubeflow.url, "503 Service Unavailable", Severity.DEBUG),
        ProgressUnsent(kubeflow.url, "404 Not Found", Severity.WARNING),
    ]
    assert kubeflow.refused == [503, 503, 404, 404]
    assert len(kubeflow.received) == 1


def test_a_server_that_refuses_gets_one_request_a_minute_after_a_few(
    kubeflow: KubeflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainjob, "INTERVAL_S", 5.0)
    kubeflow.next_answers = [(429, {})] * 6
    node: Any = Node(0)
    node.running[0].watch.steps = 7
    waits: list[float] = []

    async def test() -> None:
        loop = asyncio.get_running_loop()
        looks: list[Callable[[], None]] = []

        def later(delay_s: float, look: Callable[[], None]) -> asyncio.TimerHandle:
            waits.append(delay_s)
            looks.append(look)
            return asyncio.TimerHandle(0.0, look, (), loop)

        monkeypatch.setattr(loop, "call_later", later)
        progress = trainjob_progress(kubeflow.environ(), node, lambda _: None)
        assert progress is not None
        for _ in range(8):
            looks.pop()()
            if (request := progress._request) is not None:
                request.join(60.0)

    asyncio.run(test())
    assert waits == [5.0, 5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 5.0]
    assert (kubeflow.refused, len(kubeflow.received)) == ([429] * 6, 1)


def test_without_room_for_a_thread_it_is_tried_again(
    kubeflow: KubeflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[str] = []

    def start(request: Request) -> None:
        starts.append(request.name)
        if len(starts) == 1:
            raise RuntimeError("can't start new thread")
        super(Request, request).start()

    monkeypatch.setattr(Request, "start", start)
    test_what_has_not_changed_is_not_sent_again(kubeflow, monkeypatch)
    assert len(starts) == 2


def test_outside_of_a_trainjob_nothing_is_sent(kubeflow: KubeflowServer) -> None:
    node: Any = Node(0)
    for missing in kubeflow.environ():
        environ = {**kubeflow.environ(), missing: ""}
        assert trainjob_progress(environ, node, lambda _: None) is None
    environ = {**kubeflow.environ(), "DISABLE_KUBEFLOW_INTEGRATION": "true"}
    assert trainjob_progress(environ, node, lambda _: None) is None
