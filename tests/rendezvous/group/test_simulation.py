"""Random histories of joins, failures, losses, reconnections, duplicates, delays and masters.

Each lives through a few hundred steps with the invariants I1 to I9 checked at every one.
``FT_RUN_SIMULATION_HISTORIES`` says how many (500), ``FT_RUN_SIMULATION_SEED`` which; the seed is
printed. A history that breaks an invariant is shrunk and told step by step.
"""

import os
import random

import pytest
from ft_run.tests.harness.simulation import (
    SETUP_BYTES,
    growing_history,
    growing_setup,
    live_through,
)
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

HISTORIES = int(os.environ.get("FT_RUN_SIMULATION_HISTORIES", "500"))
SEED = int(os.environ.get("FT_RUN_SIMULATION_SEED") or random.SystemRandom().randrange(2**32))
_CHUNK = 2000
"""Hypothesis keeps all that it has tried in mind: long runs are cut into pieces."""


@pytest.mark.timeout(0 if HISTORIES > 2000 else 400)
@pytest.mark.parametrize("chunk", range(-(-HISTORIES // _CHUNK)))
def test_invariants_hold_in_every_history(chunk):
    print(f"FT_RUN_SIMULATION_SEED={SEED} chunk={chunk}")

    @seed(SEED + chunk)
    @settings(
        max_examples=min(_CHUNK, HISTORIES - chunk * _CHUNK),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        setup=st.binary(min_size=SETUP_BYTES, max_size=SETUP_BYTES),
        history=st.binary(min_size=40, max_size=400),
    )
    def histories(setup: bytes, history: bytes) -> None:
        live_through(setup + history)

    histories()


@pytest.mark.timeout(0 if HISTORIES > 2000 else 400)
@pytest.mark.parametrize("chunk", range(-(-HISTORIES // _CHUNK)))
def test_invariants_hold_while_worlds_grow(chunk):
    """Most of what happens is that nodes join, ranks save, and the round is replaced."""
    print(f"FT_RUN_SIMULATION_SEED={SEED} chunk={chunk}")

    @seed(SEED + chunk)
    @settings(
        max_examples=min(_CHUNK, HISTORIES - chunk * _CHUNK) // 2,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        setup=st.binary(min_size=SETUP_BYTES, max_size=SETUP_BYTES),
        history=st.binary(min_size=40, max_size=200),
    )
    def histories(setup: bytes, history: bytes) -> None:
        live_through(growing_setup(setup) + growing_history(history))

    histories()
