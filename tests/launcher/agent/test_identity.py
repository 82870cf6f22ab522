"""Tests of the identity of a node."""

import socket
import uuid
from contextlib import closing

import pytest
from ft_run.launcher.agent.identity import NodeIdentity


@pytest.fixture
def job() -> str:
    return uuid.uuid4().hex


def test_agents_of_a_job_on_one_host_are_numbered(job: str) -> None:
    with closing(NodeIdentity(job)) as first, closing(NodeIdentity(job)) as second:
        host = socket.gethostname()
        assert (first.node_id, second.node_id) == (f"{host}/0", f"{host}/1")
        assert first.incarnation != second.incarnation
        assert len(first.incarnation) == 16


def test_an_agent_that_is_started_again_is_the_same_node(job: str) -> None:
    first, second = NodeIdentity(job), NodeIdentity(job)
    first.close()
    with closing(NodeIdentity(job)) as again, closing(second):
        assert again.node_id == first.node_id
        assert again.incarnation != first.incarnation


def test_another_job_has_numbers_of_its_own(job: str) -> None:
    with closing(NodeIdentity(job)) as one, closing(NodeIdentity(job + "x")) as other:
        assert one.node_id == other.node_id


@pytest.mark.parametrize("name", ["x" * 1000, "a/b\n", "é" * 60, "\udcff"])
def test_any_name_of_a_job_will_do(job: str, name: str) -> None:
    with closing(NodeIdentity(name + job)) as one, closing(NodeIdentity(name + job)) as other:
        assert one.node_id != other.node_id
