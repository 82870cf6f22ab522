"""Random histories of hosts that may lead: cuts of any shape, deaths, returns, freezes, clocks.

I10 and I11 (docs/internals/architecture.md) are checked in each. ``FT_RUN_SIMULATION_HISTORIES``
says how many (60), ``FT_RUN_SIMULATION_SEED`` which; the seed is printed.
"""

import os
import random

import pytest
from ft_run.tests.harness.lease.simulation import live_through, live_through_resignations

GIVEN = os.environ.get("FT_RUN_SIMULATION_HISTORIES")
HISTORIES = int(GIVEN) if GIVEN else 60
SEED = int(os.environ.get("FT_RUN_SIMULATION_SEED") or random.SystemRandom().randrange(2**32))
_CHUNK = 1000


@pytest.mark.timeout(0 if GIVEN else 400)
@pytest.mark.parametrize("chunk", range(-(-HISTORIES // _CHUNK)))
def test_worlds_of_two_leaders_never_overlap(chunk: int) -> None:
    first = SEED + chunk * _CHUNK
    print(f"FT_RUN_SIMULATION_SEED={first}")
    longest_s = 0.0
    for seed in range(first, first + min(_CHUNK, HISTORIES - chunk * _CHUNK)):
        longest_s = max(longest_s, live_through(seed).longest_s)
    print(f"a round ran {longest_s:.1f} s after the last fault at the latest")


@pytest.mark.timeout(0 if GIVEN else 400)
@pytest.mark.parametrize("chunk", range(-(-HISTORIES // _CHUNK)))
def test_nodes_that_leave_in_order_cost_no_restart(chunk: int) -> None:
    first = SEED + chunk * _CHUNK
    print(f"FT_RUN_SIMULATION_SEED={first}")
    for seed in range(first, first + min(_CHUNK, HISTORIES - chunk * _CHUNK)):
        live_through_resignations(seed)
