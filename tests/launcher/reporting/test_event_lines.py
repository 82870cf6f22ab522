"""The words of the event lines, and when they are said."""

from dataclasses import replace

import pytest
from ft_run.launcher.reporting import event_lines as say
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.messages import Waiting

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
    assert say.is_news(now, FIRST)
    assert say.is_news(now, None)


def test_the_same_wait_a_moment_later_is_none() -> None:
    assert say.is_news(FIRST, None)
    assert not say.is_news(replace(FIRST, timeout_s=599.0), FIRST)
    assert not say.is_news(FIRST, FIRST)


def test_a_node_that_leaves_without_workers_stops_none() -> None:
    assert say.leaving("SIGTERM", 0) == "received SIGTERM: leaving the job"
    assert say.leaving("SIGINT", 2) == "received SIGINT: stopping 2 worker(s) and leaving the job"


def test_a_master_that_cannot_be_reached_is_told_with_its_address() -> None:
    where = Endpoint("10.0.0.1", 29400)
    assert say.link_down("connection refused", where, True) == (
        "no connection to the master at 10.0.0.1:29400 (connection refused): "
        "workers run on; trying again"
    )
