"""A worker forked from a fork server is as if it had been executed: the same programs, both ways.

What differs is in ``docs/reference/preload.md``, and here, each with its reason.
"""

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ft_run.launcher.flags.values import AUTO_PRELOAD, BadValue, modules
from ft_run.launcher.options import LaunchOptions, RendezvousOptions
from ft_run.launcher.spawner import forkserver, imported_files
from ft_run.launcher.workers.worker_command import WorkerCommands
from ft_run.rendezvous.protocol.messages import Assignment
from ft_run.tests.harness import preload_probes as probes
from ft_run.training.worker.imported import FORKABLE

DRIVER = Path(__file__).parents[2] / "harness" / "preload_driver.py"
PYTHON = (sys.executable, "-u")
RUN_PATH = (
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
CALL = '  File "<string>", line 1, in <module>\n'
"""The line of a traceback that only a forked worker has, with ``-m`` or a folder."""

# What the modules know of the rank, and that they work after a fork.
ALL_MODULES = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
for name, module in sorted(sys.modules.items()):
    if isinstance(known := vars(module).get("rank_zero_only"), type(lambda: 0)):
        print(name, known.rank)
if "torch" in sys.modules:
    import torch
    from torch.utils.data import DataLoader
    torch.manual_seed(1)
    layer = torch.nn.Linear(256, 256)
    layer(torch.randn(512, 256)).sum().backward()
    print(layer.weight.grad.sum().item())
    print([batch.tolist() for batch in DataLoader(range(4), batch_size=2, num_workers=2)])
if "sklearn" in sys.modules:
    import numpy
    from sklearn.cluster import KMeans
    found = KMeans(2, n_init=1, random_state=1).fit(numpy.arange(2000.0).reshape(1000, 2))
    print(found.cluster_centers_.round(3).tolist())
"""

Ways = Callable[..., dict[str, Any]]


@pytest.fixture
def both_ways(tmp_path: Path) -> Ways:
    """Run workers cold (or so many of them) and warm, in a folder of the test's own.

    Returns what came out.
    """
    calls = itertools.count()

    def run(
        modules: str,
        *workers: Sequence[str],
        env: Sequence[dict[str, str]] = (),
        watched: bool = False,
        cold: int | None = None,
    ) -> Any:
        variables = env or [{"PROBE": "1"}] * len(workers)
        order = {
            "modules": modules.split(","),
            "watched": watched,
            "cold": cold,
            "workers": [
                {"argv": [*PYTHON, *worker], "env": extra}
                for worker, extra in zip(workers, variables, strict=True)
            ],
        }
        done = subprocess.run(
            [sys.executable, str(DRIVER), str(tmp_path / f"out{next(calls)}")],
            input=json.dumps(order),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def was_warm(came_out: dict[str, Any]) -> bool:
    return [state for state, _ in came_out["fork_servers"]] == ["loading", "ready"]


def forms(script: str, *arguments: str) -> list[list[str]]:
    """Return the command lines by which ft-run starts a script."""
    return [
        [f"{script}.py", *arguments],
        [f"./{script}.py", *arguments],
        ["-m", script, *arguments],
        ["-c", RUN_PATH, f"{script}.py", *arguments],
        [f"{script}-folder", *arguments],
    ]


class TestAProgram:
    @pytest.mark.parametrize("watched", [False, True])
    def test_finds_what_it_would_find_in_an_interpreter_of_its_own(
        self, both_ways: Ways, tmp_path: Path, watched: bool
    ) -> None:
        (tmp_path / "start.py").write_text(probes.START)
        (tmp_path / "start-folder").mkdir()
        (tmp_path / "start-folder" / "__main__.py").write_text(probes.START)
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "link.py").symlink_to("../start.py")
        workers = [*forms("start", "--rank", "a b"), ["elsewhere/link.py"]]
        came_out = both_ways("colorsys", *workers, watched=watched)
        assert was_warm(came_out)
        for cold_run, warm_run, argv in zip(
            came_out["cold"], came_out["warm"], workers, strict=True
        ):
            cold, warm = json.loads(cold_run["out"]), json.loads(warm_run["out"])
            frames = cold["frames"]
            # The one launcher frame at the bottom of the stack, and what was preloaded.
            assert warm.pop("frames")[: len(frames)] == cold.pop("frames"), argv
            assert set(warm.pop("modules")) - set(cold.pop("modules")) == {"colorsys"}, argv
            looked_in = set(warm.pop("importers")) - set(cold.pop("importers"))
            assert looked_in <= {str(tmp_path)}, argv  # the preload looked there
            assert cold.pop("frozen") == 0 < warm.pop("frozen")
            for run in (cold, warm):
                run["files"] = {
                    fd: path.replace("/warm/", "/cold/") for fd, path in run["files"].items()
                }
                run["__main__ values"] = [without_addresses(v) for v in run["__main__ values"]]
                # /proc shows what the program was executed with, also what it was led here by.
                shown = run["shown variables"]
                own = ("FT_RUN_HOOK=", "PYTHONPATH=") if watched else ()
                run["shown variables"] = [line for line in shown if not line.startswith(own)]
            assert warm == cold, argv

    @pytest.mark.parametrize("watched", [False, True])
    def test_ends_as_it_would(self, both_ways: Ways, tmp_path: Path, watched: bool) -> None:
        (tmp_path / "ends.py").write_text(probes.ENDS)
        (tmp_path / "ends-folder").mkdir()
        (tmp_path / "ends-folder" / "__main__.py").write_text(probes.ENDS)
        script, _, *others = forms("ends")
        workers = [[*script, how] for how in probes.WAYS_TO_END]
        if not watched:
            workers += [[*form, how] for form in others for how in probes.SOME_WAYS_TO_END]
        came_out = both_ways("colorsys", *workers, watched=watched)
        assert was_warm(came_out)
        for cold, warm, argv in zip(came_out["cold"], came_out["warm"], workers, strict=True):
            ends = [
                (run["code"], run["out"], without_addresses(run["err"])) for run in (cold, warm)
            ]
            code, out, err = ends[0]
            ends[0] = code, out, re.sub(r"(?m)^(?=.* in _run_module_as_main$)", CALL, err)
            assert ends[0] == ends[1], argv

    def test_that_cannot_be_read_ends_as_it_would(self, both_ways: Ways) -> None:
        came_out = both_ways("colorsys", ["missing.py"], ["-m", "missing"], ["-m", "json.missing"])
        assert was_warm(came_out)
        for cold, warm in zip(came_out["cold"], came_out["warm"], strict=True):
            assert cold["code"] != 0
            assert (warm["code"], warm["err"]) == (cold["code"], cold["err"])

    @pytest.mark.parametrize("watched", [False, True])
    def test_has_processes_of_its_own(self, both_ways: Ways, tmp_path: Path, watched: bool) -> None:
        (tmp_path / "work.py").write_text(probes.PROCESSES)
        came_out = both_ways(
            "concurrent.futures,multiprocessing", ["work.py"], ["-m", "work"], watched=watched
        )
        assert was_warm(came_out)
        for cold, warm in zip(came_out["cold"], came_out["warm"], strict=True):
            assert (warm["code"], warm["out"], warm["err"]) == (0, cold["out"], "")
            assert cold["out"].count("True, 42, '1'") == 3


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)


class TestTorch:
    def test_trains_and_loads_data_as_it_would(self, both_ways: Ways, tmp_path: Path) -> None:
        (tmp_path / "work.py").write_text(probes.TORCH)
        (tmp_path / "dice.py").write_text(probes.RANDOM)
        workers = [["work.py"], ["dice.py"], ["dice.py"]]
        came_out = both_ways("torch,multiprocessing", *workers, cold=1)
        assert was_warm(came_out)
        cold, warm = came_out["cold"], came_out["warm"]
        assert [run["code"] for run in cold + warm] == [0] * 4, warm
        assert json.loads(warm[0]["out"]) == json.loads(cold[0]["out"])
        dice = [json.loads(run["out"]) for run in warm[1:]]
        for key in dice[0]:
            assert len({throw[key] for throw in dice}) == len(dice), f"{key} is not fresh"


class TestAForkServer:
    """When it is of no use, falling back to normal worker start, and one sentence says why."""

    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("raise ValueError('two\\nlines')", "importing culprit raised ValueError: two lines"),
            ("import nowhere", "importing culprit raised ModuleNotFoundError: No module named"),
            ("import sys; sys.exit(3)", "importing culprit raised SystemExit: 3"),
            (
                "import threading; threading.Thread(target=threading.Event().wait, daemon=True)"
                ".start()",
                "importing culprit starts threads, which a fork does not copy",
            ),
            (
                "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'],"
                " stdin=subprocess.PIPE)",
                "importing culprit starts processes",
            ),
            (
                "import multiprocessing; lock = multiprocessing.Lock()",
                "importing culprit creates shared memory or locks between processes (/dev/shm/sem",
            ),
            ("import os; os._exit(4)", "the process that imports culprit exited with 4"),
            ("import os; os.abort()", "the process that imports culprit was killed by signal 6"),
            (
                "import os; os.environ.get('PROBE')",
                "importing reads PROBE, which is different for the workers",
            ),
            ("import os; del os.environ['RANK']", "importing culprit raised KeyError: 'RANK'"),
            (
                "import os, sys; sys.stdout = open(os.dup(1), 'w', buffering=1)",
                "importing reopens sys.stdout, and it would not write to the workers' files",
            ),
        ],
    )
    def test_of_no_use_is_given_up(
        self, both_ways: Ways, tmp_path: Path, source: str, reason: str
    ) -> None:
        (tmp_path / "culprit.py").write_text(source)
        (tmp_path / "work.py").write_text("import os; print(os.environ['PROBE'])")
        came_out = both_ways("culprit", ["work.py"], cold=0)
        state, text = came_out["fork_servers"][-1]
        assert state == "failed"
        assert text.startswith(reason)
        assert [(run["code"], run["out"], run["err"]) for run in came_out["warm"]] == [
            (0, "1\n", "")
        ]

    @pytest.mark.parametrize(
        "source",
        [
            "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, 'utf-8', line_buffering=True)",
            "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), 'utf-8', line_buffering=True)",
            "sys.stdout = open(1, 'w', closefd=False)",
            "sys.stdout = codecs.getwriter('utf-8')(sys.stdout.buffer)",
            "class Both:\n    old = sys.stdout\n    write = old.write\nsys.stdout = Both()",
            "sys.__stdout__ = None",
            "sys.stdout = sys.stderr = io.StringIO()",
            "sys.stdout.close()",
            "sys.stdout = sys.stderr = None",
        ],
    )
    def test_of_a_module_that_replaces_the_standard_streams(
        self, both_ways: Ways, tmp_path: Path, source: str
    ) -> None:
        (tmp_path / "culprit.py").write_text(f"import codecs, io, sys\n{source}\n")
        (tmp_path / "work.py").write_text(
            "import culprit, os, sys\n"
            "os.write(2, repr(type(sys.stdout)).encode())\n"
            "if not getattr(sys.stdout, 'closed', True):\n"
            "    os.write(2, str(sys.stdout.isatty()).encode())\n"
            "print('said', flush=hasattr(sys.stdout, 'flush'))\n"
        )
        came_out = both_ways("culprit", ["work.py"])
        assert was_warm(came_out)
        (cold,), (warm,) = came_out["cold"], came_out["warm"]
        assert (warm["code"], warm["out"]) == (cold["code"], cold["out"])

    @pytest.mark.parametrize(
        "source",
        [
            "for k, v in os.environ.items(): pass",
            "kept = {k: v for k, v in os.environ.items() if k.startswith('TQDM_')}",
            "kept = len(dict(os.environ))",
            "for name in os.environ:\n    if 'RUN' in name or 'PRELOAD' in name: break",
            "for name in os.environ: value = os.environ[name]",
            "kept = []; kept.append((kept, [dict(os.environ)])); del kept",
            "import subprocess; subprocess.run(['true'], env=os.environ.copy(), check=True)",
        ],
    )
    def test_does_not_mind_a_walk_over_the_environment(
        self, both_ways: Ways, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
    ) -> None:
        """Although the agent has a ``RANK``, as in a pod of Kubeflow."""
        monkeypatch.setenv("RANK", "7")
        (tmp_path / "culprit.py").write_text(f"import os; before = len(os.environ)\n{source}\n")
        (tmp_path / "work.py").write_text(
            "import culprit, os, subprocess\n"
            "print(os.environ['RANK'], flush=True)\n"
            "print(sorted(os.environ))\n"
            "print(os.environ.copy() == dict(os.environ.items()), len(os.environb), flush=True)\n"
            "subprocess.run(['sh', '-c', 'echo $RANK'])\n"
        )
        came_out = both_ways("culprit", ["work.py"], env=[{"RANK": "1"}])
        assert was_warm(came_out)
        assert came_out["warm"][0] | {"pid": 0} == came_out["cold"][0] | {"pid": 0}

    @pytest.mark.parametrize(
        "look",
        [
            "os.environ.get('RANK')",
            "'1' if 'RANK' in os.environ else None",
            "os.environ.setdefault('RANK', '0')",
            "os.fsdecode(os.environb.get(b'RANK', b''))",
        ],
    )
    def test_finds_no_variable_that_is_the_workers_own(
        self, both_ways: Ways, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
    ) -> None:
        monkeypatch.setenv("RANK", "7")
        (tmp_path / "culprit.py").write_text(f"import os; found = {look}")
        (tmp_path / "work.py").write_text("import culprit; print(culprit.found)")
        came_out = both_ways("culprit", ["work.py"], env=[{"RANK": "1"}])
        assert came_out["fork_servers"][-1] == [
            "failed",
            "importing reads RANK, which is different for the workers",
        ]
        assert came_out["warm"][0]["out"] == "1\n"

    def test_has_modules_that_keep_the_rank_read_it_again(
        self, both_ways: Ways, tmp_path: Path
    ) -> None:
        folder = tmp_path / "torchmetrics" / "utilities"
        folder.mkdir(parents=True)
        (tmp_path / "torchmetrics" / "__init__.py").touch()
        (folder / "prints.py").write_text(
            "import os\ndef rank_zero_only(): ...\n"
            "rank_zero_only.rank = int(os.environ.get('LOCAL_RANK', 0))\n"
        )
        (tmp_path / "work.py").write_text(
            "from torchmetrics.utilities.prints import rank_zero_only; print(rank_zero_only.rank)"
        )
        env = [{"LOCAL_RANK": "1"}, {"LOCAL_RANK": "2"}]
        came_out = both_ways(
            "torchmetrics.utilities.prints", ["work.py"], ["work.py"], env=env, cold=0
        )
        assert was_warm(came_out)
        assert [run["out"] for run in came_out["warm"]] == ["1\n", "2\n"]
        (folder / "prints.py").write_text("import os\nrank = os.environ.get('LOCAL_RANK')\n")
        failed = both_ways("torchmetrics.utilities.prints", ["work.py"], env=env[:1], cold=0)
        assert failed["fork_servers"][-1] == [
            "failed",
            "importing torchmetrics.utilities.prints reads the rank, which is different for the"
            " workers",
        ]

    @pytest.mark.slow
    def test_has_all_modules_that_auto_may_import(self, both_ways: Ways, tmp_path: Path) -> None:
        """Each is checked after its import, and the workers have the same as cold."""
        installed = [name for name in FORKABLE if importlib.util.find_spec(name.partition(".")[0])]
        assert {"numpy", "torch", "lightning.pytorch", "transformers.trainer"} <= {*installed}
        (tmp_path / "work.py").write_text(ALL_MODULES)
        own = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "MASTER_PORT")
        env = dict.fromkeys((*own, "TORCHELASTIC_RESTART_COUNT", "ROLE_WORLD_SIZE"), "1")
        came_out = both_ways(",".join(installed), ["work.py", *installed], env=[env])
        assert was_warm(came_out), came_out["fork_servers"]
        (cold,), (warm,) = came_out["cold"], came_out["warm"]
        assert (warm["code"], warm["out"]) == (cold["code"], cold["out"])
        assert "lightning.pytorch.utilities.rank_zero 1\n" in warm["out"]

    def test_without_such_a_module_is_given_up(self, both_ways: Ways, tmp_path: Path) -> None:
        (tmp_path / "work.py").write_text("print('ran')")
        came_out = both_ways("colorsys,no.such.module", ["work.py"])
        assert came_out["fork_servers"][-1] == ["failed", "there is no module 'no.such.module'"]
        assert came_out["warm"][0]["out"] == "ran\n"

    def test_is_not_for_a_variable_that_a_library_has_read(
        self, both_ways: Ways, tmp_path: Path
    ) -> None:
        (tmp_path / "work.py").write_text("import os; print(os.environ['OMP_NUM_THREADS'])")
        came_out = both_ways("colorsys", ["work.py"], env=[{"OMP_NUM_THREADS": "3"}])
        assert came_out["fork_servers"][-1] == [
            "failed",
            "importing reads OMP_NUM_THREADS, which is different for the workers",
        ]
        assert came_out["warm"][0]["out"] == "3\n"

    def test_is_not_for_a_folder_with_a_module_of_the_same_name(
        self, both_ways: Ways, tmp_path: Path
    ) -> None:
        (tmp_path / "work.py").write_text("print('first')")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "colorsys.py").write_text("print('mine')")
        (tmp_path / "other" / "work.py").write_text("import colorsys")
        came_out = both_ways("colorsys", ["work.py"], ["other/work.py"])
        own = f"{tmp_path}/other has a module colorsys of its own"
        assert came_out["fork_servers"][-1] == ["failed", own]
        assert came_out["warm"][1]["out"] == "mine\n"

    def test_takes_a_module_beside_the_script_for_that_of_the_library(
        self, both_ways: Ways, tmp_path: Path
    ) -> None:
        (tmp_path / "json.py").write_text("name = 'mine'")
        (tmp_path / "work.py").write_text("import json; print(json.name)")
        came_out = both_ways("json", ["work.py"])
        assert was_warm(came_out)
        assert came_out["warm"][0]["out"] == came_out["cold"][0]["out"] == "mine\n"


NVML = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm-tools")
TARGETS = ("/dev/null", "/dev/nvidia-uvm", "socket:[1]", "/dev/kfd", *NVML)


def test_objects_of_a_package_that_reports_leaks_are_released(
    both_ways: Ways, tmp_path: Path
) -> None:
    """Frozen objects are not: the extension of triton would print all of its own."""
    (tmp_path / "triton.py").write_text(
        """
import os
class Node:
    def __del__(self, write=os.write):
        write(1, b"released\\n")
node = Node()
node.itself = node
"""
    )
    (tmp_path / "work.py").write_text("import triton; print('done')")
    came_out = both_ways("triton", ["work.py"])
    assert was_warm(came_out)
    for how in ("cold", "warm"):
        assert [run["out"] for run in came_out[how]] == ["done\nreleased\n"], how


class TestWhatAForkMustNotShare:
    def test_an_open_device_is_found(self, tmp_path: Path) -> None:
        for number, target in enumerate(TARGETS):
            (tmp_path / str(number)).symlink_to(target)
        assert sorted(forkserver.opened_devices(str(tmp_path))) == ["/dev/kfd", "/dev/nvidia-uvm"]

    def test_memory_that_is_shared_and_writable_is_found(self, tmp_path: Path) -> None:
        maps = tmp_path / "maps"
        maps.write_text(
            "7f00-7f01 r-xp 00000000 fe:00 1  /usr/lib/libc.so.6\n"
            "7f01-7f02 r--s 00000000 fe:00 2  /usr/lib/gconv.cache\n"
            "7f02-7f03 rw-p 00000000 00:00 0 \n"
            "7f03-7f04 rw-s 00000000 00:01 3  /dev/shm/sem.x (deleted)\n"
        )
        assert forkserver.shared_memory(str(maps)) == ["/dev/shm/sem.x (deleted)"]

    def test_where_the_kernel_does_not_tell_memory_it_is_not_known(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rollup = tmp_path / "smaps_rollup"
        monkeypatch.setattr(forkserver, "_ROLLUP", str(rollup))
        assert forkserver._pss_mib() == 0
        rollup.write_text("55a0-7ffd ---p 00000000 00:00 0 [rollup]\nPss: 204800 kB\n")
        assert forkserver._pss_mib() == 200


class TestImportedFiles:
    """``test_a_module_that_has_changed_on_disk_is_imported_again`` has a file that is rewritten."""

    def test_a_file_that_is_replaced_or_gone_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.py"
        path.write_text("a = 1\n")
        files = imported_files.ImportedFiles([load(path)])
        status = path.stat()
        other = tmp_path / "other.py"
        other.write_text("a = 2\n")
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.replace(path)
        assert files.changed() == str(path)
        path.unlink()
        assert files.changed() == str(path)


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("environ", [{}, {"HIP_VISIBLE_DEVICES": "7,4"}])
def test_the_variables_that_each_worker_has_are_known(
    virtual: bool, environ: dict[str, str]
) -> None:
    options = LaunchOptions("", RendezvousOptions(job_id="job"), virtual_local_rank=virtual)
    commands = WorkerCommands(options, 2, environ)
    assignment = Assignment(
        round=0,
        formed_by="",
        restarts=0,
        node_rank=0,
        nodes=1,
        rank_offset=0,
        world_size=2,
        role_rank_offset=0,
        role_world_size=2,
        successor="",
        master_addr="127.0.0.1",
        master_port=1,
        reason="",
        cause=None,
    )
    own = commands.env(assignment, 0, "").keys() - commands.job_env().keys()
    assert sorted(commands.own_variables) == sorted(own)


class TestTheOption:
    def test_names_modules(self) -> None:
        assert modules(" torch, torch.distributed ,") == ("torch", "torch.distributed")
        assert modules("auto") == AUTO_PRELOAD

    @pytest.mark.parametrize("text", ["a-b", "torch;os", "torch..nn", "1", "auto,torch", ",", ""])
    def test_refuses_what_is_no_name(self, text: str) -> None:
        with pytest.raises(BadValue):
            modules(text)
