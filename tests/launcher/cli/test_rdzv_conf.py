"""--rdzv-conf."""

import contextlib
import math

import pytest
from ft_run import defaults
from ft_run.errors import UsageError
from ft_run.launcher.cli.rdzv_conf import RendezvousConf, parse_conf
from ft_run.rendezvous.protocol.timeouts import Timeouts
from hypothesis import given, settings
from hypothesis import strategies as st


def test_nothing_said_means_the_defaults() -> None:
    assert parse_conf("") == RendezvousConf()
    assert parse_conf(" , ") == RendezvousConf()


def test_every_key_is_understood() -> None:
    assert parse_conf(
        "join_timeout=1,last_call_timeout=2,node_grace=3,node_timeout=4,master_timeout=5,"
        "connect_timeout=6,rescale_delay=7.5,drain_timeout=8,is_host=true"
    ) == RendezvousConf(Timeouts(1, 2, 3, 4, 5, 6, drain_timeout_s=8), 7.5, True)


@pytest.mark.parametrize(
    "text",
    ["'join_timeout=5,is_host=1'", '"join_timeout=5,is_host=1"', "join_timeout='5',is_host=\"1\"",
     "'join_timeout'='5','is_host'='1'", " join_timeout = 5 , is_host = 1 ,"],
)  # fmt: skip
def test_quotes_and_spaces_are_tolerated(text: str) -> None:
    assert parse_conf(text) == RendezvousConf(Timeouts(join_timeout_s=5), is_host=True)


def test_rescale_delay_may_be_never() -> None:
    assert parse_conf("rescale_delay=never").rescale_delay_s == math.inf


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("timeout=900", 900),
        ("timeout=900,join_timeout=5", 5),
        ("join_timeout=5,timeout=900", 5),
        ("join_timeout=5,join_timeout=6", 6),
    ],
)
def test_timeout_is_torchruns_join_timeout_and_join_timeout_beats_it(
    text: str, expected: float
) -> None:
    assert parse_conf(text).timeouts.join_timeout_s == expected


def test_read_timeout_limits_the_wait_for_the_host_of_the_master() -> None:
    assert parse_conf("read_timeout=60").timeouts.connect_timeout_s == 60
    assert parse_conf("read_timeout=60,connect_timeout=7").timeouts.connect_timeout_s == 7


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("Yes", True), ("t", True), ("0", False), ("no", False)]
)
def test_is_host(text: str, expected: bool) -> None:
    assert parse_conf(f"is_host={text}").is_host is expected


def test_keys_of_torchrun_that_have_nothing_to_do_are_accepted_in_silence() -> None:
    assert parse_conf("close_timeout=30,keep_alive_interval=5,store_type=file") == RendezvousConf()
    assert parse_conf("cas_backoff_max_seconds=2") == RendezvousConf()  # since torch 2.15


def test_unknown_keys_are_remarked_once_with_the_nearest_known() -> None:
    assert parse_conf("join_timout=5").warnings == (
        "--rdzv-conf: the key 'join_timout' (did you mean join_timeout?) is unknown and ignored.",
    )
    assert parse_conf("zzz=5,nodegrace=1", "PET_RDZV_CONF").warnings == (
        "PET_RDZV_CONF: the key 'zzz' is unknown and ignored.",
        "PET_RDZV_CONF: the key 'nodegrace' (did you mean node_grace?) is unknown and ignored.",
    )


@pytest.mark.parametrize("pair", ["join_timeout", "join_timeout=", "=5", "=", "join_timeout=''"])
def test_a_pair_without_key_or_value_is_refused(pair: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_conf(f"is_host=1,{pair}")
    assert refused.value.sentence.endswith(
        ": expected KEY=VALUE,..., e.g. join_timeout=600,last_call_timeout=30."
    )


TIME = "a duration in seconds, or with a unit (90s, 5m, 24h)"


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("join_timeout=0", f"{TIME}, > 0"),
        ("last_call_timeout=-1", f"{TIME}, >= 0"),
        ("node_grace=inf", f"{TIME}, >= 0"),
        ("rescale_delay=nevr", f"{TIME}, >= 0, or never"),
        ("is_host=maybe", "1/0, true/false or yes/no"),
    ],
)
def test_a_wrong_value_of_a_known_key_is_refused(text: str, right: str) -> None:
    key, _, value = text.partition("=")
    with pytest.raises(UsageError) as refused:
        parse_conf(text)
    expected = f"invalid value {value!r} for --rdzv-conf {key}: expected {right}."
    assert refused.value.sentence == expected


def test_a_time_that_would_overflow_a_timer_is_refused() -> None:
    with pytest.raises(UsageError, match="\\(more than 30 years\\)"):
        parse_conf("join_timeout=1e10")


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="join_timeout=,'\" 0123456789.-é٣", max_size=40))
def test_any_text_gives_settings_or_a_sentence(text: str) -> None:
    with contextlib.suppress(UsageError):
        conf = parse_conf(text)
        assert conf.timeouts.join_timeout_s > 0
        assert conf.timeouts.node_grace_s == defaults.NODE_GRACE_S
