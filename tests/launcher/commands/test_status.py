"""What ``ft-run status`` prints of an answer."""

import functools

import pytest
from ft_run.launcher.commands.asking import as_status
from ft_run.launcher.commands.status import _print_table
from ft_run.protos import rendezvous_pb2 as pb


def test_what_nodes_say_steers_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # else lines are folded
    evil = "\x1b]0;x\x07[red]\nhost"
    node = pb.NodeStatus(host=evil, address=evil, role=evil, phase=evil, local_world_size=1)
    _print_table(as_status(pb.StatusReply(job_id=evil, phase=evil, nodes=[node])))
    told = capsys.readouterr().out
    assert told.count("\\x1b]0;x\\x07[red]\\nhost") == 6
    assert not {"\x1b", "\x07"} & set(told)


def test_the_age_of_the_last_checkpoint_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    reply = pb.StatusReply(job_id="j", phase="running", checkpoint_step=80, checkpoint_age_s=192.6)
    _print_table(as_status(reply))
    assert "last checkpoint: step 80, 0:03:12 ago\n" in capsys.readouterr().out
    assert as_status(reply)["checkpoint_age_s"] == 192.6
    _print_table(as_status(pb.StatusReply(job_id="j")))
    assert "checkpoint" not in capsys.readouterr().out


def test_steps_are_shown_where_workers_are_watched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)

    def node(rank: int, *steps: pb.RankSteps) -> pb.NodeStatus:
        return pb.NodeStatus(host="h", node_rank=rank, phase="running", workers=steps)

    slow = pb.RankSteps(rank=0, steps=7, steps_per_s=99.0, idle_s=0.1)
    fast = pb.RankSteps(rank=1, steps=8, steps_per_s=0.25, idle_s=11.0)
    late = pb.RankSteps(rank=2, steps=9, steps_per_s=0.25, idle_s=12.0)
    reply = pb.StatusReply(job_id="j", nodes=[node(0, slow, fast), node(1, late), node(2)])
    assert [len(one["workers"]) for one in as_status(reply)["nodes"]] == [2, 1, 0]
    assert as_status(reply)["nodes"][1]["workers"] == [
        {"rank": 2, "steps": 9, "steps_per_s": 0.25, "idle_s": 12.0, "data_wait": 0.0}
    ]
    _print_table(as_status(reply))
    table = [line.split() for line in capsys.readouterr().out.splitlines()[-4:]]
    assert table[0][-2:] == ["STEP", "STEPS/S"]
    assert table[1][-2:] == ["8", "0.25"]
    assert table[2][-4:] == ["9", "none", "for", "0:00:12"]
    assert table[3][-2:] == ["-", "-"]
    fast.data_wait, late.data_wait = 0.004, 0.381
    reply = pb.StatusReply(job_id="j", nodes=[node(0, slow, fast), node(1, late), node(2)])
    _print_table(as_status(reply))
    table = [line.split() for line in capsys.readouterr().out.splitlines()[-4:]]
    assert [row[-1] for row in table] == ["DATA", "0%", "38%", "-"]
    _print_table(as_status(pb.StatusReply(job_id="j", nodes=[node(0)])))
    assert "STEP" not in capsys.readouterr().out


def test_the_progress_of_shared_work_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    work = functools.partial(pb.WorkProgress, what="shared work", unit="items")
    works = [
        work(name="new", size=7),
        work(name="embed", done=250, size=1000, per_s=12.5, left_s=60.0),
        work(name="empty"),
    ]
    _print_table(as_status(pb.StatusReply(job_id="j", phase="running", work=works)))
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "shared work new: 0 of 7 items (0 %)",
        "shared work embed: 250 of 1000 items (25 %), 12.5 items/s, 0:01:00 left",
        "shared work empty: 0 of 0 items, complete",
    ]
    works += [work(name=str(number), done=9, size=9) for number in range(3)]
    status = as_status(pb.StatusReply(job_id="j", phase="running", work=works))
    _print_table(status)
    assert capsys.readouterr().out.splitlines()[-1] == "shared work: 4 names complete"
    assert status["work"][1]["left_s"] == 60.0
