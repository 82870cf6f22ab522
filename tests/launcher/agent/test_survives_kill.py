"""Workers that SIGKILL does not end at once, on a clock that the test moves."""

from unittest import mock

import pytest
from ft_run.launcher.agent import stopping
from ft_run.launcher.processes.dying import DEVICES_SURVIVE_KILL_S, SURVIVES_KILL_S
from ft_run.rendezvous.protocol.failure import FailureKind
from ft_run.tests.launcher.agent.test_supervisor import Node, with_node


@pytest.mark.parametrize("has_driver", [False, True])
def test_workers_with_gpus_have_more_time_to_end_before_the_job_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], has_driver: bool
) -> None:
    monkeypatch.setattr(stopping, "has_driver", lambda: has_driver)
    limit_s = DEVICES_SURVIVE_KILL_S if has_driver else SURVIVES_KILL_S

    def pass_s(node: Node, seconds: float) -> None:
        for _ in range(round(seconds / SURVIVES_KILL_S)):
            node.clock.pass_to(node.clock.now + SURVIVES_KILL_S)
            node.take_what_is_over()

    def test(node: Node) -> None:
        node.kill()
        pass_s(node, limit_s - SURVIVES_KILL_S)
        assert node.reports.worker_failed.call_count == 0
        pass_s(node, SURVIVES_KILL_S)
        ((_, failure), _) = node.reports.worker_failed.call_args
        assert failure.kind is FailureKind.STUCK
        assert node.reports.workers_gone.call_count == 1
        said = capfd.readouterr().err.count("process 101, 102 still alive 10 s after SIGKILL")
        assert said == has_driver

    with_node(test)


def test_workers_that_end_in_time_do_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "has_driver", lambda: True)

    def test(node: Node) -> None:
        node.kill()
        node.clock.pass_to(3 * SURVIVES_KILL_S)
        node.take_what_is_over()
        node.end(-9, -9)
        assert node.reports.worker_failed.call_count == 0
        assert node.reports.workers_gone.call_count == 1

    with_node(test)


def test_the_memory_of_gpus_is_asked_for_before_there_are_workers(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def test(node: Node) -> None:
        asked: list[list[str]] = []
        node.spawner.asked.clear()
        memory = mock.Mock()
        memory.remember.side_effect = lambda: asked.append(list(node.spawner.asked))
        node.supervisor.forget()
        node.supervisor._gpu_memory = memory
        node.call(node.supervisor.listen, node.clock)
        node.start()
        assert (asked, node.spawner.asked) == ([[]], ["spawn 2"])

    with_node(test)
