"""What ranks agree on, in processes that know each other by gloo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ft_run.tests.harness.forked import run_forked
from ft_run.tests.harness.hosts import Network, unavailable
from ft_run.training.gloo import A_DAY, interface_towards, set_limit

PROGRAM = """
import sys
import torch.distributed as dist
from ft_run.training.ranks import Ranks

file, rank, texts = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
if len(texts) > 1:
    dist.init_process_group("gloo", f"file://{file}", world_size=len(texts), rank=rank)
ranks = Ranks()
print(repr(ranks.first_text(None if texts[rank] == "none" else texts[rank])), ranks.minimum(rank))
if len(texts) > 1:
    dist.destroy_process_group()
"""


TEXTS = (
    (["none"], "None [0]"),
    (["a word"], "'a word' [0]"),
    (["none", "none"], "None [0]"),
    (["none", "schön ✓", "another"], "'schön ✓' [0]"),
    (["none", ""], "'' [0]"),
    (["none", "file \udcff"], "'file ?' [0]"),
    (["x" + "é" * 1500, "none"], "'x" + "é" * 999 + "' [0]"),
)
"""Of the ranks of a world, and what they agree on."""


def test_the_text_of_the_first_rank_that_has_one(tmp_path: Path) -> None:
    calls = [
        (tmp_path / f"world-{world}", rank, *texts)
        for world, (texts, _) in enumerate(TEXTS)
        for rank in range(len(texts))
    ]
    expected = [found for texts, found in TEXTS for _ in texts]
    assert [ended.output.strip() for ended in run_forked(PROGRAM, calls)] == expected


SAME = """
import sys
import torch.distributed as dist
from ft_run.training.ranks import Ranks

file, rank, values = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
dist.init_process_group("gloo", f"file://{file}", world_size=len(values), rank=rank)
try:
    Ranks().check_same({"first": 1, "second": values[rank], "third": rank // 9})
except ValueError as error:
    print(error)
dist.destroy_process_group()
"""


def test_arguments_that_differ_are_refused_on_all_ranks(tmp_path: Path) -> None:
    worlds = ["5", "5"], ["5", "5", "10min"]
    calls = [
        (tmp_path / f"world-{len(values)}", rank, *values)
        for values in worlds
        for rank in range(len(values))
    ]
    words = "invalid value '10min' for second on rank 2: expected that of rank 0"
    found = [ended.output.strip() for ended in run_forked(SAME, calls)]
    assert found == [""] * 2 + [words] * 3


ON_A_HOST = """
import os, sys
import torch.distributed as dist
from ft_run.training.ranks import Ranks
os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # where NCCL is used, that needs no such thing
dist.init_process_group("gloo")
del os.environ["GLOO_SOCKET_IFNAME"]
print(Ranks().maximum(dist.get_rank()), "GLOO_SOCKET_IFNAME" in os.environ, flush=True)
dist.destroy_process_group()
"""


def test_ranks_meet_where_a_host_knows_itself_by_its_loopback_address() -> None:
    """As Debian has it in /etc/hosts."""
    if (why := unavailable()) is not None:
        pytest.skip(why)
    with Network() as network:
        for name in ("a", "b"):
            network.add(name, host_name="debian")
        for name, host in network.hosts.items():
            with open(network._hosts_file(name), "a") as file:
                file.write("127.0.1.1 debian\n")
            assert host.run("getent", "hosts", "debian").split()[0] == "127.0.1.1"
        started = [
            subprocess.Popen(
                [*host.enter, sys.executable, "-c", ON_A_HOST],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29500",
                     "MASTER_ADDR": network.hosts["a"].address},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank, host in enumerate(network.hosts.values())
        ]  # fmt: skip
        said = [process.communicate(timeout=200) for process in started]
    assert [out for out, _ in said] == ["[1] False\n"] * 2, said


def test_the_interface_towards_a_host() -> None:
    assert interface_towards("127.0.0.1") == interface_towards("no such host") == ""


def test_limit_is_set_by_the_public_name_where_torch_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        "torch.distributed.set_timeout", lambda *words: given.append(words), raising=False
    )
    group = object()
    set_limit(group, A_DAY)
    assert given == [(A_DAY, group)]
