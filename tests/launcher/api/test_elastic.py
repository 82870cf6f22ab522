"""The Python API: what a configuration means, and which files are trusted."""

import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.api import (
    ChildFailedError,
    LaunchConfig,
    LogsSpecs,
    elastic,
    elastic_launch,
    exchange,
)
from ft_run.launcher.api.config import command_line
from ft_run.launcher.cli import parse
from ft_run.launcher.flags.stream_values import Streams
from ft_run.launcher.options import LaunchOptions


def options(config: LaunchConfig) -> LaunchOptions:
    """What the agent makes of ``config``."""
    found = parse.parse([*command_line(config), "--no-python", "--", "/bin/true"], {})
    assert isinstance(found, LaunchOptions)
    return found


def test_the_fields_are_those_of_torch_in_their_order() -> None:
    torch_api = pytest.importorskip("torch.distributed.launcher.api")
    ours = {field.name: field.default for field in dataclasses.fields(LaunchConfig)}
    theirs = {field.name: field.default for field in dataclasses.fields(torch_api.LaunchConfig)}
    assert list(ours) == list(theirs)
    assert {name for name in ours if ours[name] != theirs[name]} == {"rdzv_backend"}


def test_the_defaults_are_one_node_by_itself() -> None:
    found = options(LaunchConfig(1, 1, 2))
    assert (found.nproc_per_node, found.role) == ("2", "default_role")
    assert found.rendezvous.endpoint is None
    assert found.rendezvous.max_restarts == 3
    assert found.warnings == ()


def test_every_field_arrives() -> None:
    found = options(
        LaunchConfig(
            2,
            4,
            8,
            logs_specs=LogsSpecs("/logs", redirects={0: 1, 3: 3}, tee=2, local_ranks_filter={2, 0}),
            run_id="a b",
            role="trainer",
            rdzv_endpoint="node0:1",
            rdzv_configs={"join_timeout": 5, "is_host": True},
            max_restarts=7,
            local_addr="10.0.0.2",
            numa_options="node",
            signals_to_handle="SIGUSR1",
            log_line_prefix_template="-${rank}, ",
            duplicate_stdout_filters=["a,b", "c"],
            duplicate_stderr_filters=["d"],
            virtual_local_rank=True,
            shutdown_timeout=4,
        )
    )
    group, logs = found.rendezvous, found.logs
    assert (group.min_nodes, group.max_nodes, group.max_restarts) == (2, 4, 7)
    assert (group.job_id, str(group.endpoint), group.local_addr) == ("a b", "node0:1", "10.0.0.2")
    assert (group.timeouts.join_timeout_s, group.hosts_master) == (5, True)
    assert (found.nproc_per_node, found.role, found.numa_binding) == ("8", "trainer", "node")
    assert [signal.name for signal in found.signals] == ["SIGUSR1"]
    assert found.virtual_local_rank
    assert found.shutdown_timeout_s == 4
    assert (logs.log_dir, logs.console_local_ranks) == ("/logs", frozenset({0, 2}))
    assert logs.redirects.by_local_rank == {0: Streams.OUT, 3: Streams.BOTH}
    assert logs.tee.default == Streams.ERR
    assert logs.prefix_template == "-${rank}, "
    assert (logs.stdout_filters, logs.stderr_filters) == (("a,b", "c"), ("d",))


def test_the_static_backend_has_the_node_rank_in_its_configuration() -> None:
    config = LaunchConfig(
        2,
        2,
        1,
        rdzv_backend="static",
        rdzv_endpoint="h:1",
        rdzv_configs={"rank": 1},
        rdzv_timeout=9,
    )
    found = options(config).rendezvous
    assert (found.node_rank, found.hosts_master, found.timeouts.join_timeout_s) == (1, False, 9)
    assert config.rdzv_configs == {"rank": 1}


def test_objects_of_torch_are_taken(tmp_path: Path) -> None:
    multiprocessing = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    binding = pytest.importorskip("torch.numa.binding")
    std = multiprocessing.Std
    specs = multiprocessing.DefaultLogsSpecs(
        str(tmp_path), redirects={0: std.OUT, 1: std.NONE}, tee=std.ALL, local_ranks_filter={1}
    )
    numa = binding.NumaOptions(binding.AffinityMode.CORE_COMPLEX)
    found = options(LaunchConfig(1, 1, 1, logs_specs=specs, numa_options=numa))
    assert found.logs.log_dir == str(tmp_path)
    assert found.logs.redirects.by_local_rank == {0: Streams.OUT, 1: Streams.NONE}
    assert found.logs.tee.default == Streams.BOTH
    assert found.logs.console_local_ranks == frozenset({1})
    assert found.numa_binding == "core-complex"


def test_arguments_of_a_script_need_not_be_text(tmp_path: Path) -> None:
    words = elastic._program("", "train.py", ["--epochs", 5, b"x", tmp_path])
    assert words == ["--", "train.py", "--epochs", "5", "x", str(tmp_path)]


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="invalid type dict for logs_specs: expected a LogsSpecs"):
        command_line(LaunchConfig(1, 1, 1, logs_specs={}))
    with pytest.raises(UsageError, match=r"invalid value '1,2' for rdzv_configs\['x'\]: expected"):
        command_line(LaunchConfig(1, 1, 1, rdzv_configs={"x": "1,2"}))
    with pytest.raises(UsageError, match="etcd"):
        options(LaunchConfig(1, 1, 1, rdzv_backend="etcd"))
    with pytest.raises(UsageError, match="the function <lambda> with its arguments cannot be pick"):
        elastic_launch(LaunchConfig(1, 1, 1), eval("lambda: 1"))()


def test_a_file_that_another_could_have_written_is_not_unpickled(tmp_path: Path) -> None:
    folder = str(tmp_path)
    exchange.write_call(folder, print, ())
    exchange.write_result(folder, [1])
    assert exchange.read_call(folder, lambda _: None) == (print, ())
    assert exchange.read_results(folder, {4: os.getpid()}) == {4: [1]}
    for path in tmp_path.iterdir():
        path.chmod(0o620)
    with pytest.raises(exchange.UnsafeFileError, match="with mode 0620; expected user"):
        exchange.read_call(folder, lambda _: None)
    with pytest.raises(exchange.UnsafeFileError, match="with mode 0620; expected user"):
        exchange.read_results(folder, {4: os.getpid()})
    if os.geteuid() == 0:
        (tmp_path / "call").chmod(0o600)
        os.chown(tmp_path / "call", 65534, 65534)
        with pytest.raises(exchange.UnsafeFileError, match="belongs to user 65534"):
            exchange.read_call(folder, lambda _: None)


def test_a_result_that_cannot_be_pickled_leaves_nothing_that_looks_like_one(tmp_path: Path) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        exchange.write_result(str(tmp_path), lambda: 1)
    assert list(tmp_path.iterdir()) == []


def test_importing_it_imports_neither_torch_nor_grpc() -> None:
    code = (
        "import sys, ft_run.launcher.api as api; api.LaunchConfig(1, 1, 1);"
        "print([name for name in ('torch', 'grpc', 'asyncio', 'numpy') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (answer.stdout, answer.returncode) == (b"[]\n", 0)


def test_a_failure_without_failures_has_no_first() -> None:
    with pytest.raises(LookupError):
        ChildFailedError("f", {}, "no node came").get_first_failure()
