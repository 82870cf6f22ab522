"""What is worth an event: when a wait is news and whose delay it is; the connection."""

import pytest
from ft_run.launcher.agent.news import LinkNews, is_news, waits
from ft_run.launcher.options import LaunchOptions, RendezvousOptions
from ft_run.rendezvous.master.link import LinkDown
from ft_run.rendezvous.protocol.claim import Claim, ClaimState
from ft_run.rendezvous.protocol.messages import PolicySpec, Waiting
from ft_run.tests.harness.scene import claim_of, worker_failure
from msgspec.structs import replace

FIRST = Waiting(1, 2, 2, ("--node-rank 1",), timeout_s=600.0, spare=False)


@pytest.mark.parametrize(
    "now",
    [
        replace(FIRST, joined=2, timeout_s=599.0),
        replace(FIRST, missing=("host-7",), timeout_s=599.0),
        replace(FIRST, spare=True, timeout_s=599.0),
        replace(FIRST, timeout_s=540.0),  # a reminder
        replace(FIRST, timeout_s=601.0),  # another wait
        replace(FIRST, backoff_s=4.0),
    ],
)
def test_a_wait_that_has_changed_is_news(now: Waiting) -> None:
    assert is_news(now, FIRST)
    assert is_news(now, None)


def test_the_same_wait_a_moment_later_is_none() -> None:
    assert is_news(FIRST, None)
    assert not is_news(replace(FIRST, timeout_s=599.0), FIRST)
    assert not is_news(FIRST, FIRST)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (None, "delay between consecutive restarts"),
        (PolicySpec(rules=("oom=fail",)), "delay between consecutive restarts"),
        (PolicySpec(backoff_first_s=1.0, backoff_max_s=60.0), "--restart-backoff"),
    ],
)
def test_a_delay_is_that_of_a_flag_only_where_it_was_given(
    policy: PolicySpec | None, why: str
) -> None:
    options = LaunchOptions("train.py", RendezvousOptions(job_id="job"), policy=policy)
    event = waits(replace(FIRST, backoff_s=4.0), options)
    assert str(event) == f"next round starts in 4 s ({why})"


class Away:
    """What a node tells of its master that is away, with a clock that only tests move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self._news = LinkNews(lambda event: self.lines.append(str(event)), "m:1", lambda: self.now)
        self._news.up(again=False)

    def attempt(self, at: float, claim: Claim | None, *hosts: str, reason: str = "cut") -> None:
        """An attempt has failed; the claim is what the node's workers do."""
        self.now = at
        self._news.down(LinkDown(reason, 600.0 - at, hosts), claim)


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (None, ""),
        (claim_of(0, 0, nodes=0), ""),
        (claim_of(0, 0), "workers keep running; "),
        (claim_of(0, 0, state=ClaimState.DONE), "workers finished; "),
        (
            claim_of(0, 0, failures=(worker_failure(0),)),
            "worker failed; the restart waits for the master; ",
        ),
        (
            claim_of(0, 0, state=ClaimState.STOPPED),
            "workers stopped; the next round waits for the master; ",
        ),
    ],
)
def test_a_node_without_a_master_says_what_its_workers_do(claim: Claim | None, words: str) -> None:
    away = Away()
    away.attempt(20.0, claim)
    reconnecting = f"{words}reconnecting, gives up in 9 min 40 s"
    assert away.lines == [f"no connection to the master at m:1 (cut): {reconnecting}"]


def test_an_outage_is_one_line_whatever_the_attempts_fail_with() -> None:
    away, runs = Away(), claim_of(0, 0)
    for at, reason in ((0, "cut"), (1, "refused"), (2, "cut"), (9, "refused"), (60, "refused")):
        away.attempt(at, runs, reason=reason)
    assert reasons(away) == ["cut", "refused"]  # the second is a reminder


def test_a_reason_that_comes_later_is_told_once() -> None:
    away, runs = Away(), claim_of(0, 0)
    for at, reason in ((0, "cut"), (1, "refused"), (8, "other token"), (9, "refused")):
        away.attempt(at, runs, reason=reason)
    away.attempt(10, runs, reason="other token")
    assert reasons(away) == ["cut", "other token"]


def reasons(away: Away) -> list[str]:
    return [line.partition(")")[0].partition("(")[2] for line in away.lines]


def test_what_is_waited_for_is_told_at_each_change_and_once_a_minute() -> None:
    away, runs = Away(), claim_of(0, 0)
    fails = claim_of(0, 0, failures=(worker_failure(0),))
    for at, claim in [(0, runs), (1, runs), (2, fails), (3, fails), (61, fails), (62, fails)]:
        away.attempt(at, claim)
    away.attempt(63.0, fails, "a:1: no leader yet", "b:1: no answer", "c:1: no answer")
    away.attempt(64.0, fails, "a:1: no answer", "b:1: no answer", "c:1: no answer")
    ends = [text.partition("gives up in ")[2] for text in away.lines]
    assert ends == ["10 min", "9 min 58 s", "8 min 58 s", "8 min 57 s"]
    assert "a:1: no leader yet; b:1: no answer; c:1: no answer; 2 of 3 needed" in away.lines[-1]
