"""What is told of what a node hears: when a wait is news, and whose delay it is."""

from dataclasses import replace

import pytest
from ft_run.launcher.agent.told import is_news, waits
from ft_run.launcher.options import LaunchOptions, RendezvousOptions
from ft_run.launcher.reporting.event_lines import line
from ft_run.rendezvous.protocol.messages import PolicySpec, Waiting

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
        (None, "restarts in a row are spaced"),
        (PolicySpec(rules=("oom=fail",)), "restarts in a row are spaced"),
        (PolicySpec(backoff_first_s=1.0, backoff_max_s=60.0), "--restart-backoff"),
    ],
)
def test_a_delay_is_that_of_a_flag_only_where_it_was_given(
    policy: PolicySpec | None, why: str
) -> None:
    options = LaunchOptions("train.py", RendezvousOptions("job"), policy=policy)
    event = waits(replace(FIRST, backoff_s=4.0), options)
    assert line(event) == f"the next round is formed in 4 s ({why})"
