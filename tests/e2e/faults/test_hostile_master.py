"""An agent whose master sends nonsense: one error, no worker is left."""

import math
from typing import Any

import pytest
from ft_run import exit_codes
from ft_run.protos import rendezvous_pb2 as pb
from ft_run.tests.harness.hostile_master import hostile_master

WORKER = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


def reply(fields, **usual) -> dict[str, Any]:
    return {**usual, **fields}


def start(**fields):
    at: dict[str, Any] = {
        "formed_by": "m",
        "nodes": 1,
        "world_size": 1,
        "role_world_size": 1,
        "master_port": 9,
    }
    at |= {"master_addr": "127.0.0.1", "successor": "h/0", **fields}
    return pb.MasterMessage(start=pb.Start(assignment=pb.Assignment(**at)))


def stop(**fields):
    return pb.MasterMessage(stop=pb.Stop(**reply(fields, round=0, reason="r")))


def verdict(**fields):
    return pb.MasterMessage(verdict=pb.Verdict(**reply(fields, outcome=1, sentence="s")))


INVALID = {
    "unknown message": [pb.MasterMessage()],
    "start without an assignment": [pb.MasterMessage(start=pb.Start())],
    "port beyond its bounds": [start(master_port=70_000)],
    "address with a control character": [start(master_addr="a\x00b")],
    "huge round": [start(round=2**31 - 1)],
    "exit code that is 0 to a shell": [verdict(outcome=2, exit_code=256)],
    "unknown outcome": [verdict(outcome=77)],
    "identity of another folder": [pb.MasterMessage(renamed=pb.Renamed(node_id="\n"))],
    "time that is no number": [start(), pb.MasterMessage(drain=pb.Drain(seconds=math.nan))],
    "step below all steps": [start(), pb.MasterMessage(mayleave=pb.MayLeave(step=-9))],
}
ORDERS = {
    "second start of a running round": ([start(), start(round=1)], "round 0 has not ended here"),
    "rank beyond the world": ([start(rank_offset=5)], "1 ranks from 5 of 1"),
    "node beyond the nodes": ([start(node_rank=3)], "node rank 3 of 1"),
}
ODD = {
    "late and unasked messages": [
        stop(round=7),
        pb.MasterMessage(mayleave=pb.MayLeave(round=3)),
        pb.MasterMessage(canceldrain=pb.CancelDrain(round=3)),
        pb.MasterMessage(workgrant=pb.WorkGrant(number=5, name="w", pieces=[0, 9])),
        pb.MasterMessage(nohang=pb.NoHang(round=4, sentence="s")),
        pb.MasterMessage(stackorder=pb.StackOrder(number=3)),
        pb.MasterMessage(stepsorder=pb.StepsOrder(number=3)),
        pb.MasterMessage(checkverdict=pb.CheckVerdict(sentence="s")),
        start(),
        stop(),
        stop(),
        stop(is_stale=True),
        verdict(),
        verdict(outcome=2, exit_code=5),
        start(round=9),
    ],
}


def run(ft, messages):
    """Run an agent with such a master to its end."""
    data = [message.SerializeToString() for message in messages]
    conf = "is_host=false,master_timeout=1"
    with hostile_master({}, lambda _: data) as endpoint:
        options = ("--rdzv-endpoint", endpoint, "--rdzv-id", "j", "--rdzv-conf", conf)
        command = ft.run("--nnodes", 1, *options, ft.script(WORKER))
    assert "Traceback" not in command.stderr
    assert "a bug of ft-run" not in command.stderr
    assert not ft.processes()
    return command


@pytest.mark.parametrize("messages", INVALID.values(), ids=INVALID)
def test_invalid_message_of_a_master_is_reported(ft, messages):
    command = run(ft, messages)
    assert command.process.returncode == exit_codes.RENDEZVOUS_FAILED
    assert "invalid message from the master: " in command.stderr
    assert "ft-run: error: no connection to the master" in command.stderr.splitlines()[-1]


@pytest.mark.parametrize(("messages", "reason"), ORDERS.values(), ids=ORDERS)
def test_impossible_order_of_a_master_is_an_error(ft, messages, reason):
    command = run(ft, messages)
    assert command.process.returncode == exit_codes.RENDEZVOUS_FAILED
    last = command.stderr.splitlines()[-1]
    assert last.startswith("ft-run: error: invalid order of the master to start round ")
    assert f": {reason}; expected the ft-run master of this job." in last


@pytest.mark.parametrize("messages", ODD.values(), ids=ODD)
def test_messages_that_fit_nothing_change_nothing(ft, messages):
    assert run(ft, messages).process.returncode == 0
