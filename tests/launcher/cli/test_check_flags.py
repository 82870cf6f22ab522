"""The command line of ``ft-run check``."""

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli.parse import parse
from ft_run.launcher.log_options import LogOptions
from ft_run.launcher.options import CheckOptions, LaunchOptions, RendezvousOptions
from ft_run.rendezvous.protocol.check_messages import CheckSpec
from msgspec.structs import replace

NO_LOGS = LogOptions(log_dir="/dev/null")
ALONE = LaunchOptions(
    "", RendezvousOptions(job_id="check"), logs=NO_LOGS, checks=CheckOptions(CheckSpec(only=True))
)


def check(*argv: str, **environ: str) -> LaunchOptions:
    options = parse(["check", *argv], environ)
    assert isinstance(options, LaunchOptions)
    assert options.only_checks
    return options


def spec(*argv: str, **environ: str) -> CheckSpec:
    options = check(*argv, **environ)
    assert options.checks is not None
    return options.checks.spec


def test_the_defaults():
    options = check()
    assert options == ALONE
    assert (spec().level, spec().timeout_s, options.nproc_per_node) == ("light", 0.0, "1")


def test_everything_at_once():
    options = check(
        *("--nproc-per-node", "gpu", "--accelerator", "nvidia.com/gpu", "--virtual-local-rank"),
        *("--check-level", "full", "--check_timeout=90", "--strict", "--json"),
        *("--check-report", "r.json", "--log-dir", "/logs"),
        *("--min-compute-tflops", "500", "--min-memory-gb-per-s", "2e3"),
        *("--preload", "torch,torch.distributed", "--exclude-straggler"),
    )
    spec = CheckSpec(
        only=True,
        level="full",
        timeout_s=90.0,
        minimums=("compute_tflops=500.0", "memory_gb_per_s=2000.0"),
        exclude_straggler=True,
        is_strict=True,
    )
    assert options == LaunchOptions(
        script="",
        rendezvous=RendezvousOptions(job_id="check"),
        nproc_per_node="gpu",
        accelerator="nvidia.com/gpu",
        virtual_local_rank=True,
        logs=NO_LOGS,
        checks=CheckOptions(spec, report="r.json", json=True, log_dir="/logs"),
        preload=("torch", "torch.distributed"),
    )


def test_variables_stand_for_flags_and_are_overridden_by_them():
    found = spec("--check-level", "light", PET_CHECK_LEVEL="full", PET_STRICT="1")
    assert (found.level, found.is_strict) == ("light", True)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train.py"], "unexpected argument 'train.py' for ft-run check; expected options"),
        (["--check-level", "deep"], "invalid value 'deep' for --check-level: expected light"),
        (["--check-timeout", "0"], "invalid value '0' for --check-timeout"),
        (["--nnodes", "2"], "asks for up to 2 nodes, but no endpoint was given; expected"),
        (["--nnodes", "2", "--master-port", "29500"], "but no endpoint was given"),
        (
            ["--min-compute-tflops", "-1"],
            "invalid value '-1' for --min-compute-tflops: expected a number > 0",
        ),
        (
            ["--min-compute-tflops", "nan"],
            "invalid value 'nan' for --min-compute-tflops: expected a number > 0",
        ),
        (["--min-copy-gb-per-s", "fast"], "invalid value 'fast' for --min-copy-gb-per-s"),
        (
            ["--max-latency-us", "0"],
            "invalid value '0' for --max-latency-us: expected a number > 0.",
        ),
        (["--max-latency-us", "9"], "needs several nodes, but --nnodes is 1; expected"),
        (["--min-bandwidth-gb-per-s", "9"], "--nnodes is 1; expected --nnodes 2 or more."),
        (["--straggler-threshold", "2"], "--straggler-threshold needs several nodes"),
        (
            ["--straggler-threshold", "1"],
            "invalid value '1' for --straggler-threshold: expected a number > 1",
        ),
        (["--nnodes", "2", "--standalone"], "--standalone is for one node"),
        (["--jsno"], "unknown flag '--jsno'; did you mean --json?"),
    ],
)
def test_wrong_usage(argv, words):
    with pytest.raises(UsageError) as error:
        check(*argv)
    assert words in error.value.sentence


def test_several_nodes_have_minimums_for_what_they_measure_together():
    minimums = (
        "--min-bandwidth-gb-per-s",
        "9",
        "--max-latency-us",
        "50",
        "--min-memory-gb-per-s=1",
    )
    options = check(
        *("--nnodes", "2", "--rdzv-endpoint", "h:1", "--rdzv-id", "x", *minimums),
        *("--straggler-threshold", "3"),
    )
    assert options.warnings == ()
    assert options.checks == CheckOptions(
        CheckSpec(
            only=True,
            straggler_threshold=3.0,
            minimums=("memory_gb_per_s=1.0", "latency_us=50.0", "bandwidth_gb_per_s=9.0"),
        )
    )


@pytest.mark.parametrize(
    ("variable", "value"), [("PET_MAX_LATENCY_US", "50"), ("PET_STRAGGLER_THRESHOLD", "2")]
)
def test_a_variable_for_several_nodes_that_may_be_meant_for_the_training_is_remarked(
    variable: str, value: str
):
    options = check("--nnodes", "1", **{variable: value})
    says = f"{variable} needs several nodes, but --nnodes is 1: ignored."
    assert options == replace(ALONE, warnings=(says,))


def test_one_node_is_checked_by_itself_whatever_is_said_of_an_endpoint():
    assert check("--rdzv-endpoint", "h:1") == ALONE
    variables = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_RDZV_ENDPOINT": "h:1"}
    assert check(**variables).rendezvous.max_nodes == 2
    assert check("--nnodes", "1", **variables) == ALONE


def test_the_first_node_can_be_named_as_under_torchrun():
    rendezvous = check("--nnodes", "2", "--master-addr", "h", "--node-rank", "1").rendezvous
    assert str(rendezvous.endpoint) == "h:29500"
    assert (rendezvous.node_rank, rendezvous.hosts_master) == (1, False)


def test_the_help_names_every_exit_status(capsys):
    with pytest.raises(SystemExit) as ended:
        check("--help")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(
        f"  {status} " in text for status in ("0", "2", "10", "20", "30", "40", "41", "128+n")
    )
    assert max(map(len, text.splitlines())) <= 80
