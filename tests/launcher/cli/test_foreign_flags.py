"""Flags of dlrover-run and ft_launcher: taken where ours is the same, else ours is named."""

import re
from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli.foreign_flags import CHOICES, REFUSED, TAKEN
from ft_run.launcher.cli.launch_flags import launch_command

DLROVER: str = (
    "--precheck --node-unit --auto-config --auto-tunning --exclude-straggler --save-at-breakpoint"
    " --accelerator --training-port --numa-affinity --membind-policy --network-check"
    " --comm-perf-test --ucp-device-type"
)
FT_LAUNCHER: str = (
    "--term-timeout --workers-stop-timeout --ft-workload-check-interval"
    " --ft-initial-rank-heartbeat-timeout --ft-rank-heartbeat-timeout"
    " --ft-node-health-check-interval --ft-node-health-check-endpoint --ft-safety-factor"
    " --ft-rank-termination-signal --ft-log-level --ft-rank-out-of-section-timeout"
    " --ft-rank-section-timeouts --ft-restart-check-interval --ft-restart-policy"
    " --ft-enable-nic-monitor --ft-enable-nic-healthcheck --ft-pci-topo-file"
    " --ft-link-down-path-template --ft-link-state-path-template"
    " --ft-enable-dist-storage-healthcheck --ft-storage-health-check-path"
    " --ft-skip-section-response --ft-rdzv-impl --ft-numa-bind-strict"
    " --ft-gpu-memory-reclaim-timeout --ft-gpu-memory-tolerance-mb --ft-gpu-memory-poll-interval"
    " --ft-check-remaining-processes --ft-install-exception-hook --ft-cfg-path"
    " --ft-ignore-missing-cfg --ft-max-no-progress-cycles --ft-min-progress-iterations"
    " --ft-checkpoint-iteration-file"
)
"""All that they have beside torchrun's, as their sources of August 2026 define them."""


def split(*argv: str) -> list[str]:
    found, rest = launch_command().split([*argv, "train.py"])
    assert rest == ("train.py",)
    return [word for flag, text in found for word in flag.words([text])]


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("--training_port 29500", "--worker-port=29500"),
        ("--training-port=1-5", "--worker-port=1-5"),
        ("--numa-affinity --max-restarts 1", "--numa-binding=node --max-restarts=1"),
        ("--auto-tunning --max-restarts 1", "--auto-tune=on --max-restarts=1"),
        ("--auto_tunning", "--auto-tune=on"),
        ("--precheck 1", "--network-check"),
        ("--precheck=2", "--network-check --check-level=full"),
        ("--precheck 0 --tee 3", "--tee=3"),
        ("--workers-stop-timeout 15", "--shutdown-timeout=15"),
        ("--ft-rank_heartbeat_timeout=60", "--hang-timeout=60"),
        ("--ft-rank-heartbeat-timeout null", ""),
        ("--ft-initial-rank-heartbeat-timeout 600", "--hang-timeout-start=600"),
        ("--ft-restart-policy any-failed --ft-rdzv-impl barrier", ""),
        ("--ft-workload-check-interval 5 --ft-restart-check-interval=1", ""),
        ("--ft-enable-nic-healthcheck True", "--network-check"),
    ],
)
def test_what_means_the_same_is_taken(given: str, ours: str) -> None:
    assert split(*given.split()) == ours.split()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("--ucp_device_type", "--ucp_device_type is a flag of another launcher; expected"
         " ft_run.training.Checkpointer in the script (docs/guide/checkpoints.md)."),
        ("--ft-rank-section-timeouts=setup:60", "expected --hang-timeout SECONDS or"),
        ("--ft-max-no-progress-cycles 3", "expected --max-no-progress N, which counts"),
        ("--comm-perf-test", "expected --network-check --check-level full."),
        ("--precheck 3", "invalid value '3' for --precheck: expected 0, 1 or 2."),
        ("--ft-restart-policy=min-healthy",
         "invalid value 'min-healthy' for --ft-restart-policy: expected any-failed."),
        ("--ft-unknown", "unknown flag '--ft-unknown'"),
    ],
)  # fmt: skip
def test_what_does_not_is_refused_with_ours(given: str, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        split(*given.split())
    assert sentence in error.value.sentence


def test_a_value_that_is_missing_or_wrong_is_said() -> None:
    with pytest.raises(UsageError, match="--training-port needs a value"):
        launch_command().split(["--training-port"])
    with pytest.raises(UsageError, match="invalid value 'x' for --worker-port"):
        launch_command().read(["--training-port", "x", "train.py"], {})


def test_every_flag_of_theirs_is_ours_taken_or_refused() -> None:
    ours = {word for flag in launch_command().flags for word in flag.opts}
    known = ours | {*TAKEN, *CHOICES, *REFUSED}
    assert [flag for flag in f"{DLROVER} {FT_LAUNCHER}".split() if flag not in known] == []
    assert not ours & {*TAKEN, *CHOICES, *REFUSED}


def test_the_flags_that_are_named_exist() -> None:
    ours = {word for flag in launch_command().flags for word in flag.opts}
    named = " ".join((*TAKEN.values(), *REFUSED.values()))
    named += " ".join(word for values in CHOICES.values() for flags in values.values()
                      for word in flags)  # fmt: skip
    assert {*re.findall(r"--[a-z-]+", named)} <= ours


def test_the_guide_has_them_all() -> None:
    guide = (Path(__file__).resolve().parents[3] / "docs" / "guide" / "migrating.md").read_text()
    spelled = guide.replace("_", "-")
    assert [flag for flag in f"{DLROVER} {FT_LAUNCHER}".split() if flag not in spelled] == []
