"""Tests of the identity of a node."""

import fcntl
import os
import socket
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from ft_run.launcher.agent import identity
from ft_run.launcher.agent.identity import NodeIdentity
from ft_run.launcher.machine import user_folder


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


def test_lock_file_is_removed_with_the_agent(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_folder, "_shared_folder", lambda: tmp_path / "own")
    one, other = NodeIdentity(job), NodeIdentity(job)
    assert len(list((tmp_path / "own").iterdir())) == 2
    one.close()
    other.given(f"{other.host}/5")
    other.close()
    (kept,) = (tmp_path / "own").iterdir()
    assert kept.read_text() == "5", "a restarted agent needs the number"
    again = NodeIdentity(job)
    assert again.node_id.endswith("/0")
    with closing(NodeIdentity(job)) as restarted:
        assert restarted.node_id.endswith("/5")
        restarted.close(is_over=True)
    again.close(is_over=True)
    assert list((tmp_path / "own").iterdir()) == []


def test_lock_of_a_file_that_was_just_removed_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last owner removes it between ``open`` and ``flock``."""
    path, real = tmp_path / "slot", fcntl.flock
    calls = []

    def late(file: int, how: int) -> None:
        calls.append(file)
        if len(calls) == 1:
            path.unlink()
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    file, is_locked = identity._lock(path)
    assert is_locked
    assert os.path.samestat(os.fstat(file), path.lstat())
    assert len(calls) == 2
    os.close(file)


def test_another_job_has_numbers_of_its_own(job: str) -> None:
    with closing(NodeIdentity(job)) as one, closing(NodeIdentity(job + "x")) as other:
        assert one.node_id == other.node_id


@pytest.mark.parametrize("name", ["x" * 1000, "a/b\n", "é" * 60, "\udcff"])
def test_any_name_of_a_job_will_do(job: str, name: str) -> None:
    with closing(NodeIdentity(name + job)) as one, closing(NodeIdentity(name + job)) as other:
        assert one.node_id != other.node_id


def test_the_number_that_the_master_gave_is_the_one_of_an_agent_that_is_started_again(
    job: str,
) -> None:
    first = NodeIdentity(job)
    first.given(f"{first.host}/1")
    with closing(NodeIdentity(job)) as neighbour:
        assert neighbour.node_id == f"{first.host}/2"
    first.close()
    with closing(NodeIdentity(job)) as again:
        assert again.node_id == f"{first.host}/1"
        again.close(is_over=True)
    with closing(NodeIdentity(job)) as of_the_next_job:
        assert of_the_next_job.node_id == f"{first.host}/0"


def test_a_killed_agent_leaves_nothing_that_is_in_the_way(job: str) -> None:
    hold = f"import os, ft_run.launcher.agent.identity as i; i.NodeIdentity({job!r}); os.abort()"
    subprocess.run([sys.executable, "-c", hold], check=False)
    with closing(NodeIdentity(job)) as again:
        assert again.node_id.endswith("/0")


@pytest.mark.root
@pytest.mark.parametrize("way", ["another user's", "open to all", "a link"])
def test_what_another_user_can_write_to_holds_no_number(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Nothing is created in a folder that another user has put in the way."""
    trap = tmp_path / "trap"
    trap.mkdir(mode=0o700)
    if way == "another user's":
        os.chown(trap, 65534, 65534)
    elif way == "open to all":
        trap.chmod(0o777)
    else:
        (tmp_path / "link").symlink_to(trap)
        trap = tmp_path / "link"
    monkeypatch.setattr(user_folder, "_shared_folder", lambda: trap)
    with closing(NodeIdentity(job)) as one, closing(NodeIdentity(job)) as other:
        assert one.node_id != other.node_id
    assert list(trap.iterdir()) == []


def test_without_a_folder_of_its_own_a_node_has_a_number_that_no_other_has(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_folder, "_shared_folder", lambda: tmp_path / "no" / "such")
    with closing(NodeIdentity(job)) as one, closing(NodeIdentity(job)) as other:
        assert one.node_id != other.node_id
