"""What a command line means: options, or one sentence."""

import math
import re
import signal
import stat
import zipfile
from pathlib import Path

import pytest
from ft_run import defaults, exit_codes
from ft_run.errors import UsageError
from ft_run.events.event import Severity
from ft_run.launcher.cli import launch_flags, parse
from ft_run.launcher.cli.launch_flags import CompletionOptions
from ft_run.launcher.cli.master_flags import MasterOptions, StacksOptions, StatusOptions
from ft_run.launcher.flags.stream_values import Streams, StreamSelection
from ft_run.launcher.options import LaunchOptions, RendezvousOptions, ScriptMode
from ft_run.launcher.workers.worker_command import WorkerCommands
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.messages import HangSpec
from ft_run.rendezvous.protocol.timeouts import Timeouts

MULTI = ("--nnodes=2", "--rdzv-id=j", "--rdzv-backend=grpc", "--rdzv-endpoint=node0")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a ``train.py`` in it."""
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launch(*argv: str, **environ: str) -> LaunchOptions:
    options = parse.parse(argv, environ)
    assert isinstance(options, LaunchOptions)
    return options


def rendezvous(*argv: str, **environ: str) -> RendezvousOptions:
    return launch(*argv, "train.py", **environ).rendezvous


def sentence(*argv: str, **environ: str) -> str:
    with pytest.raises(UsageError) as refused:
        parse.parse(argv, environ)
    assert refused.value.exit_code == exit_codes.USAGE
    return refused.value.sentence


# The script and its arguments.


def test_a_script_alone_has_the_defaults_of_torchrun() -> None:
    options = launch("train.py")
    assert options == LaunchOptions(
        script="train.py", rendezvous=RendezvousOptions(job_id=options.rendezvous.job_id)
    )


@pytest.mark.parametrize(
    ("argv", "mode"),
    [
        ([], ScriptMode.SCRIPT),
        (["--run-path"], ScriptMode.RUN_PATH),
        (["--run-path", "--no-python"], ScriptMode.RUN_PATH),
        (["--run-path", "--no-python", "-m"], ScriptMode.RUN_PATH),
        (["-m"], ScriptMode.MODULE),
        (["--module"], ScriptMode.MODULE),
        (["--no_python"], ScriptMode.COMMAND),
    ],
)
def test_modes(folder: Path, argv: list[str], mode: ScriptMode) -> None:
    (folder / "train.py").chmod(0o755)
    script = "train" if mode is ScriptMode.MODULE else "./train.py"
    assert launch(*argv, script).mode is mode


def test_module_and_no_python_exclude_each_other() -> None:
    assert sentence("-m", "train", PET_NO_PYTHON="1") == (
        "--module and PET_NO_PYTHON exclude each other; expected one of them."
    )


def test_no_script() -> None:
    expected = "no script was given; expected ft-run [OPTIONS] SCRIPT [ARGS]..."
    assert sentence() == expected
    assert sentence("--standalone", "--") == expected


def test_a_script_that_does_not_exist(folder: Path) -> None:
    where = f"no script 'nope.py' in {folder};"
    right = "expected the path of a Python file, -m MODULE, or --no-python PROGRAM."
    assert sentence("nope.py") == f"{where} {right}"
    assert sentence("--run-path", "nope.py") == f"{where} {right}"
    assert sentence("train") == f"no script 'train' in {folder}; did you mean train.py?"


def test_a_script_that_was_meant_differently(folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "run.py").touch()
    assert sentence("package.run").endswith("; did you mean -m package.run?")
    assert sentence("statsu").endswith("; did you mean the command ft-run status?")
    assert sentence("host").endswith("; did you mean the command ft-run hosts?")
    assert sentence("tokne").endswith("; did you mean the command ft-run token?")
    assert sentence("python3", "train.py").endswith(
        "; ft-run starts Python by itself: omit it, or use --no-python for a program."
    )


def test_what_python_can_run_is_a_script(folder: Path) -> None:
    (folder / "app").mkdir()
    (folder / "app" / "__main__.py").touch()
    with zipfile.ZipFile(folder / "app.zip", "w") as archive:
        archive.writestr("__main__.py", "")
    for script in ("app", "app.zip", "-", "/dev/stdin", "train_${local_rank}.py"):
        assert launch(script).script == script


def test_a_folder_without_a_main_is_not_a_script(folder: Path) -> None:
    (folder / "lib").mkdir()
    assert sentence("lib") == (
        "the script 'lib' is a directory without a __main__.py; expected the path of a Python file."
    )


def test_a_script_that_is_misspelt(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "pretrain.py").write_text("")
    assert sentence("trian.py").endswith(
        f"no script 'trian.py' in {folder}; did you mean train.py?"
    )
    assert sentence("src/pretain.py").endswith("did you mean src/pretrain.py?")
    assert "did you mean" not in sentence("no/such/folder/train.py")


def test_a_file_is_no_module() -> None:
    assert sentence("-m", "train.py") == (
        "invalid value 'train.py' for -m (it is a file): expected -m train, or train.py without -m."
    )


def test_a_module_is_not_looked_up() -> None:
    assert launch("-m", "no.such.module", "-x").script == "no.such.module"


def test_a_program_is_looked_up_on_the_path(folder: Path) -> None:
    (folder / "bin").mkdir()
    program = folder / "bin" / "tool"
    program.touch()
    program.chmod(stat.S_IRWXU)
    assert launch("--no-python", "tool", PATH=str(folder / "bin")).script == "tool"
    assert launch("--no-python", "bin/tool", PATH="").script == "bin/tool"
    for missing in ("tool", "train.py", "./bin", "\0"):
        assert sentence("--no-python", missing, PATH="/nowhere") == (
            f"invalid value {missing!r} for --no-python: expected a program on the PATH, or the"
            " path of an executable file, e.g. ./train.sh."
        )


# Spellings, prefixes, variables.


def test_prefixes() -> None:
    both = StreamSelection(default=Streams.BOTH)
    assert launch("--redirect=3", "--stand", "train.py").logs.redirects == both
    assert sentence("--nno", "2") != sentence("--no", "2")
    assert sentence("--no", "2") == (
        "'--no' is ambiguous: it could be --no-python or --node-rank; expected the whole name."
    )


def test_our_flags_leave_the_prefixes_of_torchrun_unambiguous() -> None:
    """``--node`` and ``--re`` have one meaning under torchrun, and keep it."""
    pytest.importorskip("torch")
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    theirs = {
        word.replace("_", "-"): action.dest
        for action in parser._actions
        for word in action.option_strings
        if word.startswith("--")
    }
    command = launch_flags.launch_command()
    takes_value = {flag.key: flag.takes_value for flag in command.flags}
    found, _ = command.split(["--log-=x", "--log-l=y", "--p=zsh"])
    assert [(flag.key, text) for flag, text in found] == [
        *(("log_dir", "x"), ("log_line_prefix_template", "y"), ("print_completion", "zsh")),
    ]
    for word, dest in theirs.items():
        for end in range(3, len(word) + 1):
            meanings = {d for w, d in theirs.items() if w.startswith(word[:end])}
            if len(meanings) == 1 and dest != "help":
                found, _ = command.split([word[:end]] + ["0"] * takes_value[dest])
                assert found[0][0].key == dest


def test_every_flag_of_torchrun_is_known() -> None:
    pytest.importorskip("torch")
    from torch.distributed.run import get_args_parser

    flags = launch_flags.launch_command().flags
    ours = {flag.key for flag in flags if not flag.ours}
    theirs = {action.dest for action in get_args_parser()._actions}
    assert theirs - ours == {"training_script", "training_script_args"}
    assert ours - {flag.key for flag in flags if flag.since} <= theirs


# The group.


@pytest.mark.parametrize("text", ["3:2", ""])
def test_wrong_nnodes(text: str) -> None:
    assert sentence(f"--nnodes={text}", "train.py") == (
        f"invalid value {text!r} for --nnodes: expected N or MIN:MAX with 1 <= MIN <= MAX,"
        " e.g. 4 or 2:5."
    )
    if text:
        assert sentence("train.py", PET_NNODES=text).startswith(
            f"invalid value {text!r} for PET_NNODES: expected"
        )


def test_node_unit() -> None:
    assert rendezvous(*MULTI, "--nnodes=2:5", "--node-unit=2").node_unit == 2
    assert sentence(*MULTI, "--nnodes=3:5", "--node-unit=2", "train.py") == (
        "--nnodes has a minimum of 3, which is not a multiple of --node-unit 2; expected 4."
    )


def test_segment() -> None:
    assert rendezvous(*MULTI, "--nnodes=2").segment is None
    assert rendezvous(*MULTI, "--nnodes=2", "--segment=none").segment == ""
    assert rendezvous(*MULTI, "--nnodes=2", "--segment=rack 7").segment == "rack 7"
    for bad in ("", "a\nb", "x" * 129):
        assert sentence(*MULTI, f"--segment={bad}", "train.py").endswith(
            "for --segment: expected a name of at most 128 printable characters, or none."
        )


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--standalone"],
        ["--standalone", "--master-port=1234"],
        ["--standalone", "--rdzv-endpoint=node0:29400", "--rdzv-backend=c10d"],
        ["--rdzv-endpoint="],
        ["--rdzv-backend=grpc"],
        ["--master-addr=node0", "--node-rank=0"],
    ],
)
def test_one_node_by_itself_opens_nothing(argv: list[str]) -> None:
    found = rendezvous(*argv)
    assert (found.endpoint, found.hosts_master, found.node_rank) == (None, None, None)
    assert found.job_id != defaults.JOB_ID
    assert found.job_id != rendezvous(*argv).job_id
    assert rendezvous(*argv, "--rdzv-id=mine").job_id == "mine"
    assert (found.worker_ports, found.master_addr) == (None, None)


@pytest.mark.parametrize(
    "argv",
    [
        ["--rdzv-backend=c10d"],
        ["--rdzv-backend=c10d", "--master-port=1234"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"],
        ["--rdzv-endpoint=localhost:0"],
        ["--master-port=0"],
    ],
)
def test_one_node_without_a_fixed_port_has_the_id_that_torchrun_gives_it(argv: list[str]) -> None:
    found = rendezvous(*argv)
    assert (found.endpoint, found.job_id) == (None, defaults.JOB_ID)
    assert (found.worker_ports, found.master_addr) == (None, None)
    assert rendezvous(*argv, "--rdzv-id=mine").job_id == "mine"


def test_the_workers_of_one_node_have_the_port_that_was_given() -> None:
    found = rendezvous("--master-port=1234", "--master-addr=10.0.0.1", "--node-rank=0")
    assert (found.endpoint, found.master_addr) == (None, "10.0.0.1")
    assert found.job_id == defaults.JOB_ID
    assert (found.worker_ports, found.worker_ports_flag) == ((1234,), "--master-port")
    of_theirs = rendezvous("--master-port=1234", "--worker-port=5-6")
    assert (of_theirs.worker_ports, of_theirs.worker_ports_flag) == ((5, 6), "--worker-port")


def test_a_static_endpoint_of_one_node_is_where_its_workers_meet() -> None:
    found = rendezvous("--rdzv-backend=static", "--rdzv-endpoint=node0:1234", "--node-rank=0")
    assert (found.endpoint, found.hosts_master, found.node_rank) == (None, None, None)
    assert (found.master_addr, found.job_id) == ("node0", defaults.JOB_ID)
    assert (found.worker_ports, found.worker_ports_flag) == ((1234,), "--rdzv-endpoint")
    apart = rendezvous("--rdzv-backend=static", "--rdzv-endpoint=m:1", "--rdzv-conf=is_host=0")
    assert (apart.endpoint, apart.worker_ports) == (Endpoint("m", 1), None)
    of_several = rendezvous("--nnodes=2", "--rdzv-backend=static", "--rdzv-endpoint=m:1")
    assert (of_several.endpoint, of_several.worker_ports) == (Endpoint("m", 1), None)


@pytest.mark.parametrize(
    ("argv", "ports"),
    [
        (["--rdzv-endpoint=localhost:1234"], (1234,)),
        (["--rdzv-endpoint=127.0.0.1:1234", "--rdzv-backend=c10d"], None),
    ],
)
def test_one_node_leaves_its_endpoint_to_a_script_that_is_given_it_too(
    argv: list[str], ports: tuple[int, ...] | None
) -> None:
    options = launch(*argv, "train.py", "--store", "tcp://localhost:1234/")
    assert options.rendezvous.endpoint is None
    assert options.rendezvous.worker_ports == ports
    assert "the port is left free for the script" in options.warnings[0]
    for other in ("tcp://localhost:12345", "1234"):
        assert launch(*argv, "train.py", other).rendezvous.endpoint is not None
    spare = launch("--rdzv-endpoint=node0:1234", "train.py", "tcp://node0:1234")
    assert spare.rendezvous.endpoint == Endpoint("node0", 1234)


def test_workers_have_no_port_at_which_nodes_meet() -> None:
    for argv in (["--rdzv-endpoint=m:5"], ["--nnodes=2", "--master-addr=m", "--master-port=5"]):
        assert rendezvous(*argv, "--worker-port=4-6").worker_ports == (4, 6)
    assert rendezvous("--rdzv-endpoint=a:5,b:5,c:6", "--worker-port=5-7").worker_ports == (7,)
    for given in ("5", "5-5"):
        assert sentence("--rdzv-endpoint=m:5", f"--worker-port={given}", "train.py") == (
            f"--worker-port {given} is the port of the rendezvous (--rdzv-endpoint), which no"
            " worker can use; expected another port."
        )
    apart = rendezvous("--rdzv-endpoint=m:5", "--worker-port=5", "--rdzv-conf=is_host=0")
    assert apart.worker_ports == (5,)


@pytest.mark.parametrize(
    ("argv", "endpoint", "hosts_master", "node_rank"),
    [
        (["--rdzv-endpoint=node0"], "node0:29400", None, None),
        (["--rdzv-endpoint=[fd00::1]:1"], "[fd00::1]:1", None, None),
        (["--nnodes=2", "--master-addr=node0"], "node0:29500", None, None),
        (["--nnodes=2", "--master-addr=[::1]", "--node-rank=0"], "[::1]:29500", True, 0),
        (["--nnodes=2", "--master-addr=node0", "--node-rank=1"], "node0:29500", False, 1),
        (["--nnodes=2", "--node-rank=1", "--rdzv-conf=is_host=1"], "127.0.0.1:29500", True, 1),
        (["--nnodes=2", "--rdzv-endpoint=m", "--node-rank=0"], "m:29400", None, 0),
        (
            ["--nnodes=2", "--rdzv-endpoint=m", "--node-rank=1", "--rdzv-backend=static"],
            "m:29400",
            False,
            1,
        ),
        ([*MULTI, "--node-rank=5"], "node0:29400", None, 5),
        ([*MULTI, "--rdzv-conf=is_host=false"], "node0:29400", False, None),
        ([*MULTI, "--rdzv-backend=c10d"], "node0:29400", None, None),
    ],
)
def test_where_the_master_is(
    argv: list[str], endpoint: str, hosts_master: bool | None, node_rank: int | None
) -> None:
    found = rendezvous(*argv)
    assert str(found.endpoint) == endpoint
    assert (found.hosts_master, found.node_rank) == (hosts_master, node_rank)


def test_the_variables_of_a_kubeflow_pod() -> None:
    found = rendezvous(
        PET_NNODES="4",
        PET_NPROC_PER_NODE="auto",
        PET_NODE_RANK="2",
        PET_MASTER_ADDR="job-node-0-0.job",
        PET_MASTER_PORT="29400",
    )
    assert found.endpoint == Endpoint("job-node-0-0.job", 29400)
    assert (found.hosts_master, found.node_rank, found.max_nodes) == (False, 2, 4)


def test_a_node_rank_is_ignored_with_c10d_as_by_torchrun() -> None:
    options = launch(*MULTI, "--rdzv-backend=c10d", "--node-rank=1", "train.py")
    assert options.rendezvous.node_rank is None
    assert options.warnings == (
        "--node-rank 1 is ignored with --rdzv-backend c10d, as by torchrun; --rdzv-backend"
        " grpc uses it.",
    )


def test_a_node_rank_beyond_the_nodes() -> None:
    assert sentence("--nnodes=2", "--node-rank=2", "train.py") == (
        "invalid value '2' for --node-rank (the job has 2 nodes): expected a rank from 0 to 1, or"
        " no rank for a spare node."
    )


def test_standalone_is_for_one_node() -> None:
    assert sentence("--standalone", "train.py", PET_NNODES="1:2") == (
        "--standalone is for one node, but PET_NNODES asks for up to 2;"
        " expected --rdzv-endpoint HOST:PORT instead of --standalone."
    )


@pytest.mark.parametrize("backend", ["grpc", "c10d"])
def test_several_nodes_need_an_endpoint(backend: str) -> None:
    assert sentence("--nnodes=2", f"--rdzv-backend={backend}", "train.py") == (
        "--nnodes asks for up to 2 nodes, but no endpoint was given; expected"
        " --rdzv-endpoint HOST:PORT, the same on every node, where HOST is one of the nodes."
    )


def test_several_nodes_need_a_port_they_know() -> None:
    assert sentence(*MULTI, "--rdzv-endpoint=node0:0", "train.py") == (
        "--rdzv-endpoint has port 0, which other nodes cannot know; expected a fixed port,"
        " e.g. node0:29400."
    )
    assert sentence("--nnodes=2", "--master-port=0", "train.py").startswith("--master-port has")


def test_wrong_endpoints_and_backends() -> None:
    assert sentence("--rdzv-endpoint=http://node0:29400", "train.py") == (
        "invalid value 'http://node0:29400' for --rdzv-endpoint:"
        " expected HOST[:PORT], e.g. node0:29400 or [fd00::1]:29400."
    )
    assert sentence("--rdzv-backend=etcd-v2", "train.py") == (
        "invalid value 'etcd-v2' for --rdzv-backend (ft-run has its own master and needs no etcd):"
        " expected grpc with --rdzv-endpoint HOST:PORT, where HOST is one of the nodes."
    )
    assert sentence("--rdzv-backend=mine", "train.py") == (
        "invalid value 'mine' for --rdzv-backend: expected grpc, c10d or static."
    )


def test_several_nodes_without_an_id_are_told_why_they_should_have_one() -> None:
    options = launch("--nnodes=2", "--master-addr=node0", "train.py")
    assert options.rendezvous.job_id == "none"
    assert options.warnings == (
        "no --rdzv-id: a node of another job with the same endpoint could join this job; use an ID"
        " for each job, the same on every node.",
    )
    assert launch("--nnodes=2", "--master-addr=a", "train.py", PET_RDZV_ID="x").warnings == ()


def test_several_nodes_without_an_endpoint_are_told_where_they_meet() -> None:
    options = launch("--nnodes=2", "--rdzv-id=x", "train.py")
    assert options.rendezvous.endpoint == Endpoint("127.0.0.1", 29500)
    assert options.warnings == (
        "no --rdzv-endpoint: the rendezvous is at 127.0.0.1:29500, which only this host can reach;"
        " for nodes on other hosts use --rdzv-endpoint HOST:PORT.",
    )
    for given in ({"PET_MASTER_ADDR": "127.0.0.1"}, {"PET_RDZV_ENDPOINT": "127.0.0.1"}):
        assert launch("--nnodes=2", "--rdzv-id=x", "train.py", **given).warnings == ()


def test_replicas_of_snapshots_need_other_nodes() -> None:
    assert launch(*MULTI, "--snapshot-replicas=1", "train.py").snapshot_replicas == 1
    assert launch("--snapshot-replicas=0", "train.py").snapshot_replicas == 0
    assert sentence(*MULTI, "train.py", PET_SNAPSHOT_REPLICAS="2") == (
        "invalid value '2' for PET_SNAPSHOT_REPLICAS: expected at most 1, one less than the nodes"
        " of the job."
    )


def test_times_and_remarks_of_the_conf() -> None:
    options = launch("--rdzv-conf='timeout=5,node_grace=2,node_grave=1'", "train.py")
    assert options.rendezvous.timeouts == Timeouts(join_timeout_s=5, node_grace_s=2)
    assert options.warnings == (
        "--rdzv-conf: the key 'node_grave' (did you mean node_grace?) is unknown and ignored.",
    )


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], None),
        (["--rdzv-conf=rescale_delay=3"], 3.0),
        (["--rdzv-conf=rescale_delay=3", "--rescale-delay=4"], 4.0),
        (["--rdzv-conf=rescale_delay=3", "--rescale-delay=never"], math.inf),
        (["--rdzv-conf=rescale_delay=never"], math.inf),
    ],
)
def test_rescale_delay(argv: list[str], expected: float | None) -> None:
    assert rendezvous(*argv).rescale_delay_s == expected
    assert launch(*argv, "train.py").job_spec().rescale_delay_s == expected


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        ([], {}, None),
        (["--hang-timeout=never"], {"PET_HANG_TIMEOUT": "60"}, None),
        (["--hang-timeout=90"], {}, HangSpec(90.0, 1800.0)),
        ([], {"PET_HANG_TIMEOUT": "auto"}, HangSpec(0.0, 1800.0)),
        (["--hang-timeout=auto", "--hang-timeout-start=5"], {}, HangSpec(0.0, 5.0)),
    ],
)
def test_hang_timeouts(argv: list[str], environ: dict[str, str], expected: HangSpec | None) -> None:
    found = launch(*argv, "--on-failure=oom=fail", "train.py", **environ)
    assert found.hang == found.job_spec().hang == expected
    assert WorkerCommands(found, 1, {}).options.are_workers_watched is (expected is not None)


TIME = "a duration in seconds, or with a unit (90s, 5m, 24h)"


def test_hang_timeouts_that_make_no_sense() -> None:
    for text in ("0", "-1", "soon", "1e99"):
        assert f"expected {TIME}, > 0, auto or never." in sentence(
            f"--hang-timeout={text}", "train.py"
        )
    assert f"invalid value '0' for --hang-timeout-start: expected {TIME}, > 0" in (
        sentence("--hang-timeout=9", "--hang-timeout-start=0", "train.py")
    )
    assert sentence("--hang-timeout-start=9", "train.py") == (
        "--hang-timeout-start has no effect, because --hang-timeout is never; expected"
        " --hang-timeout DURATION or --hang-timeout auto."
    )


def test_addresses_and_ports() -> None:
    found = rendezvous("--local-addr=[fd00::2]", "--worker-port=29600-29609")
    assert (found.local_addr, found.worker_ports) == ("fd00::2", tuple(range(29600, 29610)))
    assert sentence("--worker-port=9-8", "train.py") == (
        "invalid value '9-8' for --worker-port: expected PORT or LO-HI with 1 <= LO <= HI <= 65535,"
        " e.g. 29600 or 29600-29699."
    )
    assert sentence("--master-port=65536", "train.py") == (
        "invalid value '65536' for --master-port: expected a whole number from 0 to 65535."
    )


def test_which_process_hosts_the_store() -> None:
    assert not launch("train.py").separate_store
    assert not launch("--store=worker", "train.py", PET_STORE="separate").separate_store
    assert launch("train.py", PET_STORE="separate").separate_store
    assert sentence("--store=agent", "train.py") == (
        "invalid value 'agent' for --store: expected worker or separate."
    )


# Workers, failure, logs.


def test_max_restarts() -> None:
    assert rendezvous("--max-restarts=3").max_restarts == 3
    assert sentence("--max-restarts", "-1", "train.py") == (
        "invalid value '-1' for --max-restarts: expected a whole number >= 0."
    )


def test_what_says_that_the_machine_will_be_gone() -> None:
    assert launch("train.py").preemption_notice is None
    for source in ("gcp", "aws", "azure", "auto", "file:/run/notice"):
        assert launch("--preemption-notice", source, "train.py").preemption_notice == source
        assert launch(f"--preemption_notice={source}", "train.py").preemption_notice == source
        assert launch("train.py", PET_PREEMPTION_NOTICE=source).preemption_notice == source
    for source in ("gce", "file:", "", "/run/notice"):
        with pytest.raises(UsageError, match="expected gcp, aws, azure, auto or file:PATH"):
            launch(f"--preemption-notice={source}", "train.py")


def test_shutdown_timeout_by_flag_variable_and_torchs_variable() -> None:
    torch = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3"}
    assert launch("train.py").shutdown_timeout_s == 30
    assert launch("train.py", **torch).shutdown_timeout_s == 3
    assert launch("train.py", PET_SHUTDOWN_TIMEOUT="4", **torch).shutdown_timeout_s == 4
    assert launch("--shutdown-timeout=0", "train.py", **torch).shutdown_timeout_s == 0
    assert sentence("train.py", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="x") == (
        f"invalid value 'x' for TORCH_ELASTIC_SHUTDOWN_TIMEOUT: expected {TIME}, >= 0."
    )


def test_signals() -> None:
    options = launch(
        "--signals-to-handle", "SIGUSR1, SIGTERM,SIGTERM,XYZ,usr2,SIGKILL,", "train.py"
    )
    assert options.signals == (signal.SIGUSR1, signal.SIGTERM)
    assert options.warnings == (
        "--signals-to-handle: the signal 'XYZ' is unknown and ignored.",
        "--signals-to-handle: the signal 'usr2' (did you mean SIGUSR2?) is unknown and ignored.",
        "--signals-to-handle: no process can handle SIGKILL; ignored.",
    )
    assert launch("--signals-to-handle=", "train.py").signals == ()


def test_logs() -> None:
    logs = launch(
        *("--log-dir=/logs", "-r3", "-t", "0:1,10:3", "--local-ranks-filter=0,2"),
        *("--duplicate-stdout-filters=a,b", "--duplicate_stderr_filters=c,,d", "train.py"),
    ).logs
    assert logs.log_dir == "/logs"
    assert logs.redirects.of(7) is Streams.BOTH
    assert (logs.tee.of(0), logs.tee.of(1), logs.tee.of(10)) == (
        Streams.OUT,
        Streams.NONE,
        Streams.BOTH,
    )
    assert logs.console_local_ranks == frozenset({0, 2})
    assert (logs.stdout_filters, logs.stderr_filters) == (("a", "b"), ("c,d",))
    assert sentence("-r", "4", "train.py") == (
        "invalid value '4' for --redirects: expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both),"
        " or RANK:DIGIT pairs, e.g. 0:1,10:3."
    )


def test_the_prefix_of_lines_is_that_of_the_flag_else_of_the_variables() -> None:
    name, flag = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "--log-line-prefix-template"
    assert launch("train.py").logs.prefix_template == ""
    assert launch("train.py", **{name: "a"}).logs.prefix_template == "a"
    both = {name: "a", "PET_LOG_LINE_PREFIX_TEMPLATE": "b"}
    assert launch("train.py", **both).logs.prefix_template == "b"
    assert launch(f"{flag}=c", "train.py", **both).logs.prefix_template == "c"
    assert launch(f"{flag}=", "train.py", **{name: "a"}).logs.prefix_template == "a"


def test_a_script_for_completion_needs_no_other_flag_and_has_no_variable() -> None:
    assert parse.parse(["--print-completion", "zsh"], {}) == CompletionOptions("zsh")
    assert parse.parse(["--print_completion=bash", "train.py"], {}) == CompletionOptions("bash")
    launch("train.py", PET_PRINT_COMPLETION="zsh")
    assert sentence("--print-completion", "tcsh") == (
        "invalid value 'tcsh' for --print-completion: expected bash, zsh or fish."
    )


def test_the_remaining_flags() -> None:
    options = launch(
        *("--role=trainer", "--numa-binding=core-complex", "--event-log-handler=console"),
        *("--accelerator=nvidia.com/gpu", "--virtual-local-rank", "--monitor-interval=0.5"),
        *("--start-method=fork", "train.py"),
    )
    assert (options.role, options.numa_binding) == ("trainer", "core-complex")
    assert (options.event_log_handler, options.accelerator) == ("console", "nvidia.com/gpu")
    assert options.virtual_local_rank
    assert sentence("--accelerator=tpu", "train.py") == (
        "invalid value 'tpu' for --accelerator:"
        " expected auto, nvidia.com/gpu, amd.com/gpu, ascend-npu or cpu."
    )
    assert sentence("--numa-binding=cpu", "train.py") == (
        "invalid value 'cpu' for --numa-binding: expected node, socket, exclusive or core-complex."
    )
    assert sentence("--logs-specs=mine", "train.py") == (
        "invalid value 'mine' for --logs-specs (ft-run has no log plug-ins):"
        " expected --log-dir with --redirects, --tee and --local-ranks-filter."
    )


# Subcommands and help.


def test_master() -> None:
    assert parse.parse(["master"], {}) == MasterOptions(endpoint=Endpoint("::", 29400))
    conf = "node_grace=1,node_timeout=2,last_call_timeout=3,join_timeout=4,rescale_delay=never"
    conf += ",leased=1"
    options = parse.parse(
        ["master", "--bind=10.0.0.1:1", "--rdzv-conf", conf],
        {"PET_RDZV_ENDPOINT": "elsewhere:1", "PET_NNODES": "wrong"},
    )
    assert options == MasterOptions(
        endpoint=Endpoint("10.0.0.1", 1),
        timeouts=Timeouts(
            node_grace_s=1, node_timeout_s=2, last_call_timeout_s=3, join_timeout_s=4
        ),
        rescale_delay_s=math.inf,
        warnings=("--rdzv-conf: the key 'leased' (did you mean lease?) is unknown and ignored.",),
    )
    assert parse.parse(["master", "--rdzv-endpoint", ":2"], {}) == MasterOptions(Endpoint("::", 2))
    assert sentence("master", "train.py").startswith(
        "unexpected argument 'train.py' for ft-run master; expected options only"
    )


def test_status() -> None:
    assert parse.parse(["status"], {}) == StatusOptions()
    assert parse.parse(["status", "node0", "--json", "--timeout=2"], {}) == StatusOptions(
        Endpoint("node0", 29400), may_be_job="node0", json=True, timeout_s=2
    )
    assert parse.parse(["status", "node0:1"], {}) == StatusOptions(Endpoint("node0", 1))
    assert parse.parse(["status", "--json"], {"PET_RDZV_ENDPOINT": "m:1"}) == StatusOptions(
        Endpoint("m", 1), json=True
    )
    assert parse.parse(["status", "--job=a:b", "--watch"], {}) == StatusOptions(
        job="a:b", watch=True
    )
    in_a_pod = {"PET_RDZV_ENDPOINT": "m:1"}
    assert parse.parse(["status", "--job", "a"], in_a_pod) == StatusOptions(job="a")
    assert parse.parse(["status", "a"], in_a_pod) == StatusOptions(
        Endpoint("a", 29400), may_be_job="a"
    )
    assert sentence("status", "a:1", "b:2") == (
        "unexpected argument 'b:2' for ft-run status; expected one JOB or HOST[:PORT]."
    )
    assert sentence("status", "a:x").startswith("invalid value 'a:x' for ft-run status: expected")
    for other in ("a:1", "--rdzv-endpoint=a:1"):
        assert sentence("status", "--job=a", other) == (
            "--job and an endpoint exclude each other; expected one of them."
        )
    assert sentence("status", "--watch", "--json").startswith("--watch and --json exclude")


def test_stacks() -> None:
    assert parse.parse(["stacks"], {}) == StacksOptions()
    assert parse.parse(
        ["stacks", "node0", "--rank", "0,17", "--json", "--timeout=2"], {}
    ) == StacksOptions(
        Endpoint("node0", 29400), may_be_job="node0", json=True, timeout_s=2.0, ranks=(0, 17)
    )
    assert "ranks separated by commas, e.g. 0,17" in sentence("stacks", "--rank=0-3")


def test_the_console_is_quiet_or_loud() -> None:
    assert launch("train.py").logs.level is None
    assert launch("-q", "train.py").logs.level is Severity.WARNING
    assert launch("--verbose", "train.py").logs.level is Severity.DEBUG
    assert launch("train.py", PET_QUIET="1").logs.level is Severity.WARNING
    assert sentence("-qv", "train.py") == (
        "--quiet and --verbose exclude each other; expected one of them."
    )
    assert not launch("train.py").logs.is_json
    assert launch("--log-format", "json", "train.py").logs.is_json
    # As torchrun reads them.
    assert launch("--v", "train.py").virtual_local_rank
    assert launch("--log-d", "x", "train.py").logs.log_dir == "x"


def test_workers_are_watched_when_that_is_asked_for() -> None:
    assert not launch("train.py").watch_workers
    assert launch("--watch-workers", "train.py").watch_workers
    assert launch("train.py", PET_WATCH_WORKERS="1").watch_workers
    assert not launch("train.py").are_workers_watched
    assert launch("--hang-timeout", "60", "train.py").are_workers_watched


def test_auto_tune() -> None:
    assert launch("train.py").auto_tune == "off"
    assert not launch("--auto-tune", "off", "train.py").are_workers_watched
    advised = launch("train.py", PET_AUTO_TUNE="advise")
    assert advised.auto_tune == "advise"
    assert advised.are_workers_watched
    assert advised.policy == launch("--watch-workers", "train.py").policy
    tuned = launch("--auto-tunning", "train.py")
    assert tuned.auto_tune == "on"
    assert tuned.are_workers_watched


def test_errors_are_captured_unless_that_is_refused() -> None:
    assert launch("train.py").capture_errors
    assert not launch("--no-capture-errors", "train.py").capture_errors
    assert not launch("train.py", PET_NO_CAPTURE_ERRORS="1").capture_errors


@pytest.mark.parametrize("name", ["master", "status", "stacks"])
def test_a_script_may_have_the_name_of_a_subcommand(folder: Path, name: str) -> None:
    (folder / name).touch()
    assert launch("--", name).script == name
    assert launch(f"./{name}").script == f"./{name}"
    assert launch("--standalone", name, "--help").script_args == ("--help",)


def test_help_is_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    begin = ["Examples:", "Commands (ft-run COMMAND --help):"]
    of_all = [
        *("Workers:", "Rendezvous:", "Security:", "Failures:", "Checks:", "Logs:", "Script:"),
        *("Compatibility with torchrun:", "Help:", "Exit codes:"),
    ]
    for word, groups in (("--help", ["Options:"]), ("--help-all", of_all)):
        with pytest.raises(SystemExit) as stop:
            parse.parse([word], {})
        assert stop.value.code == 0
        out = capsys.readouterr().out
        headings = [line for line in out.splitlines() if line[:1].isalpha() and line[-1] == ":"]
        assert headings == begin + groups
    assert "Every option can be set by the environment variable PET_<NAME>" in out


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ("help", "Usage: ft-run [OPTIONS] SCRIPT"),
        ("help help", "Usage: ft-run [OPTIONS] SCRIPT"),
        ("help status", "Usage: ft-run status "),
        ("help hosts", "Usage: ft-run hosts "),
        ("version", "ft-run "),
    ],
)
def test_help_and_version_as_words(
    words: str, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse.parse(words.split(), {})
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(start)


@pytest.mark.parametrize("word", ["help", "version"])
def test_a_script_called_help_is_a_script(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / word).write_text("")
    assert launch(word).script == word


def test_help_of_a_command_that_is_none() -> None:
    assert sentence("help", "stats") == "there is no command 'stats'; did you mean status?"
    assert sentence("help", "xyz").startswith("there is no command 'xyz'; the commands are master,")
    assert sentence("hlep").endswith("did you mean the command ft-run help?")


def test_every_command_has_help() -> None:
    from ft_run.launcher.cli.script import COMMANDS
    from ft_run.launcher.commands.completion import command_lines

    assert {"", *COMMANDS} == command_lines().keys()


# --- several hosts that may lead -----------------------------------------------------------------


def test_a_master_without_a_node_may_be_one_of_several() -> None:
    found = parse.parse(["master", "--rdzv-endpoint=a,b:1,c"], {})
    assert isinstance(found, MasterOptions)
    assert [str(where) for where in found.endpoints] == ["a:29400", "b:1", "c:29400"]
    alone = parse.parse(["master", "--bind=:1"], {})
    assert isinstance(alone, MasterOptions)
    assert (str(alone.endpoint), alone.endpoints) == ("[::]:1", ())
    assert "2 hosts tolerate no more losses than 1" in sentence("master", "--bind=a,b")


def test_three_endpoints_are_the_hosts_that_may_lead() -> None:
    found = rendezvous("--nnodes=4", "--rdzv-id=j", "--rdzv-endpoint=a,b:1,[fd00::1]:2")
    assert [str(where) for where in found.endpoints] == ["a:29400", "b:1", "[fd00::1]:2"]
    assert found.endpoint == found.endpoints[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("a,b", "2 hosts tolerate no more losses than 1): expected one endpoint, three"),
        ("a,b,c,d", "4 hosts tolerate no more losses than 3): expected one endpoint"),
        ("a,b,a", "expected each endpoint once"),
        ("a,b,a:29400", "expected each endpoint once"),
        ("a,b,c:0", "(other nodes cannot know port 0): expected fixed ports"),
        ("a,b,c d", "expected HOST"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(given: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        rendezvous("--nnodes=4", "--rdzv-id=j", f"--rdzv-endpoint={given}")


def test_lease_and_fence_are_settings_of_the_rendezvous() -> None:
    times = rendezvous(*MULTI, "--rdzv-conf=lease=5,fence=never").timeouts
    assert (times.lease_s, times.fence_s) == (5.0, math.inf)


@pytest.mark.parametrize("flag", ["--local-addr", "--log-dir"])
def test_an_empty_address_or_folder_is_none(flag: str) -> None:
    options = parse.parse(["--standalone", flag, "", "-m", "train"], {})
    assert isinstance(options, LaunchOptions)
    assert options.rendezvous.local_addr is None
    assert options.logs.log_dir is None
