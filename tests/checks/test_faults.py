"""The grammar of injected faults, and where they strike."""

import time

import pytest
from ft_run.checks.faults import ActiveFaults, Fault, FaultError, FaultKind, InjectedError
from ft_run.checks.faults import parse_faults as parse
from ft_run.checks.records import Phase


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ()),
        (" ; ", ()),
        ("fail", (Fault(FaultKind.FAIL),)),
        ("hang@node=n1", (Fault(FaultKind.HANG, node="n1"),)),
        (
            "slow-compute=2.5@local-rank=3,phase=solo",
            (Fault(FaultKind.SLOW_COMPUTE, 2.5, local_rank=3, phase=Phase.SOLO),),
        ),
        (
            "exit@local_rank=0; wrong-value@phase=all",
            (
                Fault(FaultKind.EXIT, local_rank=0),
                Fault(FaultKind.WRONG_VALUE, phase=Phase.ALL),
            ),
        ),
    ],
)
def test_what_a_text_means(text, faults):
    assert parse(text) == faults


@pytest.mark.parametrize(
    "text",
    [
        *("hnag", "slow-compute", "slow-compute=0.5", "slow-communication=nan", "fail=2"),
        *("fail@host=a", "fail@local-rank=one", "fail@phase=duo"),
    ],
)
def test_what_cannot_be_understood_is_said(text):
    with pytest.raises(FaultError) as error:
        parse(f"hang; {text}")
    assert str(error.value).startswith(f"invalid fault {text!r} in FT_RUN_CHECK_FAULT: expected")


@pytest.mark.parametrize(
    ("text", "strikes"),
    [
        ("wrong-value", True),
        ("wrong-value@node=n0,local-rank=1,phase=pair", True),
        ("wrong-value@node=n1", False),
        ("wrong-value@local-rank=0", False),
        ("wrong-value@phase=all", False),
        ("hang", False),
    ],
)
def test_only_the_selected_rank_is_struck(text, strikes):
    assert ActiveFaults(parse(text), "n0", 1, Phase.PAIR).wrong_value is strikes


def test_fail_and_exit():
    ended = []
    with pytest.raises(InjectedError, match="FT_RUN_CHECK_FAULT"):
        ActiveFaults(parse("fail"), "n", 0, Phase.SOLO).strike(lambda: ended.append("fail"))
    ActiveFaults(parse("exit"), "n", 0, Phase.SOLO).strike(lambda: ended.append("exit"))
    ActiveFaults(parse(""), "n", 0, Phase.SOLO).strike(lambda: ended.append("none"))
    assert ended == ["exit"]


def test_what_is_slow_takes_as_many_times_as_long(monkeypatch):
    now = [0.0]
    slept: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "sleep", slept.append)

    def work():
        now[0] += 2.0

    computes = ActiveFaults(parse("slow-compute=4"), "n", 0, Phase.SOLO)
    assert computes.compute_factor == 4.0
    assert computes.slow_communication(work) is work
    communicates = ActiveFaults(parse("slow-communication=4"), "n", 0, Phase.PAIR)
    assert communicates.compute_factor == 1.0
    communicates.slow_communication(work)()
    assert slept == [6.0]
