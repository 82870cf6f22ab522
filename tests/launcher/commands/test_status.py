"""What ``ft-run status`` prints of an answer."""

import pytest
from ft_run.launcher.commands.status import _as_dict, _print_table
from ft_run.protos import rendezvous_pb2 as pb


def test_what_nodes_say_steers_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # else lines are folded
    evil = "\x1b]0;x\x07[red]\nhost"
    node = pb.NodeStatus(host=evil, address=evil, role=evil, phase=evil, local_world_size=1)
    _print_table(_as_dict(pb.StatusReply(job_id=evil, phase=evil, nodes=[node])))
    told = capsys.readouterr().out
    assert told.count("\\x1b]0;x\\x07[red]\\nhost") == 6
    assert not {"\x1b", "\x07"} & set(told)
