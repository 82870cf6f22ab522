"""The case table: what is run under both launchers, and which rows of the contract it covers."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ft_run.tests.conformance.launchers import Launcher, Surroundings
from ft_run.tests.conformance.row import Row, spelled

if TYPE_CHECKING:
    from ft_run.tests.conformance.row import Act
    from ft_run.tests.e2e.conftest import Command

_MANY: Final = {
    "nnodes": "1:1",
    "nproc-per-node": "2",
    "rdzv-backend": "c10d",
    "rdzv-endpoint": "127.0.0.1:{port}",
    "rdzv-id": "job-7",
    "rdzv-conf": "join_timeout=60,timeout=60",
    "max-restarts": "3",
    "monitor-interval": "0.05",
    "start-method": "fork",
    "event-log-handler": "null",
    "role": "trainer",
    "log-dir": "{logs}",
    "redirects": "1:1",
    "tee": "0:3,1:2",
    "local-ranks-filter": "0",
    "duplicate-stdout-filters": "red,blue",
    "duplicate-stderr-filters": "green",
    "local-addr": "127.0.0.1",
    "signals-to-handle": "SIGTERM,SIGINT",
    "shutdown-timeout": "9",
    "virtual-local-rank": "",
}
_STATIC: Final = {
    "nnodes": "1",
    "node-rank": "0",
    "master-addr": "127.0.0.1",
    "master-port": "{port}",
    "module": "",
}
_PROGRAM: Final = {"standalone": "", "no-python": ""}

_COLOURS: Final = """
for colour in ("red", "green", "blue"):
    say(f"{colour} {rank}")
    say(f"{colour} {rank}", sys.stderr)
"""

_SPELLINGS: Final = ("dashes", "underscores", "prefixes", "equals", "variables")


def _in_every_spelling() -> "list[Row]":
    rows = []
    for how in _SPELLINGS:
        flags = {flag: value for flag, value in _MANY.items() if value or how != "equals"}
        rows += [
            Row(
                f"flags by {how}",
                covers=" ".join(flags),
                script=_COLOURS,
                job_id="job-7",
                **spelled(flags, how),  # type: ignore[arg-type]
            ),
            Row(
                f"static flags by {how}",
                covers=" ".join(_STATIC),
                words=("script", "-x"),
                job_id="none",
                **spelled(_STATIC, how if how != "equals" else "dashes"),  # type: ignore[arg-type]
            ),
            Row(
                f"switches by {how}",
                covers=" ".join(_PROGRAM),
                words=("./program", "-x"),
                **spelled(_PROGRAM, how if how != "equals" else "dashes"),  # type: ignore[arg-type]
            ),
        ]
    return rows


_S: Final = "--standalone --nproc-per-node 2 "

_WAIT: Final = """
import threading
def told(number, frame):
    say(f"{rank} got {signal.Signals(number).name}")
    os._exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, told)
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: say(f"{rank} got {signal.Signals(number).name}"))
say(f"{rank} ready")
while True:
    signal.pause()
"""


def _send(number: int) -> "Act":
    def act(launcher: Launcher, commands: "Sequence[Command]") -> None:
        commands[0].expect("@@[01] ready", 2)
        commands[0].send(number)

    return act


def _user_signal(launcher: Launcher, commands: "Sequence[Command]") -> None:
    commands[0].expect("@@[01] ready", 2)
    commands[0].send(signal.SIGUSR1)
    if launcher.name == "ft-run":
        commands[0].expect("@@[01] got SIGUSR1", 2)
        commands[0].send(signal.SIGTERM)


ARGUMENTS: Final = [
    Row(
        "arguments of the script",
        "argv",
        _S,
        words=("{script}", "--nnodes", "7", "a", "--", "-m", "", "a b", "--help", "é"),
    ),
    Row("a dash dash before the script", "argv", _S + "--", words=("{script}", "-x", "--", "y")),
    Row(
        "local_rank in arguments",
        "local-rank-macro",
        _S,
        words=("{script}", "--rank=${local_rank}", "$local_rank", "$$", "${other}", "$", "${"),
    ),
    Row("a repeated flag", "repeated", "--role a --role b --standalone"),
    Row("the command line beats a variable", "PET", "--role a --standalone", env={"PET_ROLE": "b"}),
    Row("a switch that is off", "PET", env={"PET_STANDALONE": "0", "PET_MODULE": "0"}),
    Row("a folder", "script", "--standalone", words=("package", "-x")),
    Row("a module", "module", "--standalone -m", words=("package.inner", "-x", "${local_rank}")),
    Row("a program on the PATH", "no-python", "--standalone --no-python",
        words=("env", "{dir}/program", "a")),
    Row("run-path", "run-path", "--standalone --run_path --no-python",
        words=("{script}", "-x", "${local_rank}"), differs=("run-path",)),
]  # fmt: skip

ENVIRONMENT: Final = [
    Row("two workers", "environment OMP_NUM_THREADS", _S, env={"OMP_NUM_THREADS": ""}),
    Row(
        "what the agent has",
        "environment OMP_NUM_THREADS proxies",
        _S,
        env={
            "OMP_NUM_THREADS": "3",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            "CUDA_VISIBLE_DEVICES": "5,3",
            "http_proxy": "http://proxy.invalid:1",
            "RANK": "77",
            "MASTER_ADDR": "elsewhere",
            "LOGLEVEL": "ERROR",
            "EMPTY": "",
            "NOT_UTF8": "\udcff",
        },
    ),
    Row("another Python", "PYTHON_EXEC", "--standalone", env={"PYTHON_EXEC": "{dir}/python"}),
    Row("virtual ranks", "virtual-local-rank", _S + "--virtual-local-rank"),
    Row(
        "virtual ranks among visible devices",
        "virtual-local-rank",
        _S + "--virtual-local-rank",
        env={"CUDA_VISIBLE_DEVICES": "7, 4,GPU-1"},
    ),
    Row("standard input", "stdin", _S, script="say(sys.stdin.readline() if rank == '0' else '')"),
    Row("an id of a standalone job", "standalone rdzv-id", "--standalone --rdzv-id mine",
        job_id="mine", differs=("standalone id",)),
    Row("an id without an endpoint", "rdzv-id", "--rdzv-id mine", job_id="mine",
        differs=("standalone id",)),
]  # fmt: skip

_LOUD: Final = """
say(f"out of {rank}")
say(f"err of {rank}", sys.stderr)
sys.stdout.write("@@one\\r@@two\\r\\n@@three\\n\\n")
say("caf\\u00e9 \\U0001f600")
"""

OUTPUT: Final = [
    Row(f"{args or 'no flags'}", covers, f"{_S}--log-dir {{logs}} {args}", script=_LOUD)
    for args, covers in (
        ("", "log-dir"),
        ("-r 0", "redirects"),
        ("-r 1", "redirects"),
        ("-r2", "redirects"),
        ("-r=3", "redirects"),
        ("-t 1", "tee"),
        ("-t 2", "tee"),
        ("-t 3", "tee prefix"),
        ("-r 3 -t 1", "redirects tee"),
        ("-r 1 -t 2", "redirects tee"),
        ("-r 0:1,1:2", "redirects"),
        ("-t 0:3", "tee"),
        ("-r 0:3 -t 1:1", "redirects tee"),
        ("-r 0:3,0:1", "redirects"),
        ("-r 5:3", "redirects"),
        ("--local-ranks-filter 1", "local-ranks-filter"),
        ("--local-ranks-filter 1 -t 3", "local-ranks-filter tee"),
        ("--local-ranks-filter 0 -r 1", "local-ranks-filter redirects"),
        ("--local-ranks-filter 0,1 -t 0:1", "local-ranks-filter tee"),
        ("-t 3 --duplicate-stdout-filters out", "duplicate-stdout-filters"),
        ("-t 3 --duplicate-stderr-filters of,,_0,err", "duplicate-stderr-filters"),
        ("-r 3 --duplicate-stdout-filters out", "duplicate-stdout-filters redirects"),
        (
            "-t 1 --duplicate-stdout-filters out --duplicate-stderr-filters err "
            "--local-ranks-filter 1",
            "duplicate-stdout-filters duplicate-stderr-filters local-ranks-filter tee",
        ),
    )
] + [
    Row("no log folder", "log-dir redirects tee", _S + "-r 1 -t 2", script=_LOUD),
    Row("/dev/null", "log-dir redirects tee", _S + "--log-dir /dev/null -r 1 -t 2", script=_LOUD),
    Row("a log folder by variables", "log-dir PET", _S, script=_LOUD,
        env={"PET_LOG_DIR": "{logs}/deep/er", "PET_TEE": "3", "PET_REDIRECTS": "1"}),
    Row("a prefix of one's own", "prefix", _S + "-t 3 --role trainer", script=_LOUD, env={
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}:${rank}/${local_rank} ${x}> "}),
]  # fmt: skip

LEVELS: Final = [
    Row(f"LOGLEVEL={level}", "LOGLEVEL", "--standalone", env={"LOGLEVEL": level}, program=True)
    for level in ("DEBUG", "ERROR")
]

EVENTS: Final = [
    Row("events", "event-log-handler", _S + "--event-log-handler console", differs=("events",)),
    Row("events of failures", "event-log-handler",
        _S + "--event-log-handler console --max-restarts 1", script="""
together()
if rank == "1":
    raise SystemExit(3)
while True:
    signal.pause()
""", differs=("events", "ended workers")),
]  # fmt: skip

SIGNALS: Final = [
    *(
        Row(
            name,
            f"signals {name}",
            _S,
            script=_WAIT,
            act=_send(signal.Signals[name]),
            differs=("signal",),
        )
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    ),
    Row(
        "SIGUSR1 to handle",
        "signals SIGUSR1 signals-to-handle",
        _S + "--signals-to-handle SIGUSR1,SIGTERM",
        script=_WAIT.replace("(signal.SIGTERM,", "(signal.SIGUSR1, signal.SIGTERM,").replace(
            "in (signal.SIGUSR1, signal.SIGUSR2)", "in (signal.SIGUSR2,)"
        ),
        act=_send(signal.SIGUSR1),
        differs=("signal",),
    ),
    Row(
        "SIGUSR1",
        "signals SIGUSR1",
        _S,
        script=_WAIT,
        act=_user_signal,
        differs=("user signal",),
    ),
]

_FAIL_ONCE: Final = """
say(f"attempt {attempt} of {rank}")
say(f"attempt {attempt} of {rank}", sys.stderr)
together()
raise SystemExit(attempt < "2" and rank == "1")
"""

_FAILS_LATER: Final = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
together()
if rank == "1":
    say("leaving")
    raise SystemExit(7)
while True:
    signal.pause()
"""

_ERROR_FILE: Final = """
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "ValueError: a fish", "extraInfo": {
        "py_callstack": "Traceback (most recent call last):\\n  in a pond\\nValueError: a fish\\n",
        "timestamp": "1700000000"}}}, file)
raise SystemExit(1)
"""

FAILURES: Final = [
    Row("an exit status", "failure", "--standalone", script="raise SystemExit(7)"),
    Row("one of two fails", "failure", _S, script=_FAILS_LATER),
    Row("a signal", "failure", "--standalone", script="os.kill(os.getpid(), signal.SIGSEGV)"),
    Row("an exception", "failure", "--standalone -t 3 --log-dir {logs}",
        script="raise ValueError('@@ a fish')"),
    Row("restarts", "max-restarts log-dir", _S + "--max-restarts 2 -t 3 --log-dir {logs}",
        script=_FAIL_ONCE),
    Row("restarts spent", "max-restarts failure", "--standalone --max-restarts 1",
        script="raise SystemExit(3)"),
    Row("an error file", "error-file TORCHELASTIC_ERROR_FILE", "--standalone --log-dir {logs}",
        script=_ERROR_FILE, env={"TORCHELASTIC_ERROR_FILE": "{logs}/error.json"}),
    Row("@record", "record", "--standalone --log-dir {logs}", script="""
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise KeyError("fish")
main()
"""),
]  # fmt: skip

_ROLES: Final = "--nnodes 3 --master-addr 127.0.0.1 --master-port {port} --rdzv-id roles "

NODES: Final = [
    Row(
        "three agents, two roles",
        "role static nnodes node-rank",
        _ROLES,
        agents=(
            "--node-rank 0 --role trainer --nproc-per-node 2",
            "--node-rank 1 --role ps --nproc-per-node 1",
            "--node-rank 2 --role trainer --nproc-per-node 3",
        ),
        job_id="roles",
    ),
    Row(
        "two agents",
        "c10d nnodes rdzv-conf",
        "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:{port} --rdzv-id two "
        "--nproc-per-node 2 --local-addr 127.0.0.1 --rdzv-conf 'timeout=60',unknown=7",
        agents=("--rdzv-conf is_host=1", "--rdzv-conf is_host=0"),
        job_id="two",
    ),
    Row(
        "two agents on IPv6",
        "c10d rdzv-endpoint",
        "--nnodes 2:2 --rdzv-backend c10d --rdzv-endpoint [::1]:{port} --rdzv-id six "
        "--local-addr ::1",
        agents=("", ""),
        job_id="six",
    ),
    Row(
        "too few nodes",
        "rdzv-conf c10d",
        "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:{port} --rdzv-id few "
        "--rdzv-conf join_timeout=1,timeout=1",
        job_id="few",
        differs=("rendezvous failed",),
    ),
]


def _faked(torchrun: str, ft_run: str) -> Surroundings:
    return Surroundings(prelude={"torchrun": torchrun, "ft-run": ft_run})


_ONE_CPU: Final = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"

_TWO_GPUS: Final = {
    "torchrun": """
import types, torch
torch.cuda.is_available = torch.accelerator.is_available = lambda: True
torch.cuda.device_count = torch.accelerator.device_count = lambda: 2
torch.accelerator.current_accelerator = lambda: torch.device("cuda")
torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(
    pci_domain_id=0, pci_bus_id=index + 1, pci_device_id=0)
""",
    "ft-run": """
import types
from ft_run.launcher import accelerators
nvml = types.SimpleNamespace(
    NVMLError=OSError, nvmlInit=lambda: None, nvmlShutdown=lambda: None,
    nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=lambda index: index,
    nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
    nvmlDeviceGetPciInfo=lambda index: types.SimpleNamespace(domain=0, bus=index + 1, device=0))
accelerators.load_nvml = lambda: nvml
accelerators.find_accelerators.__kwdefaults__["nvml"] = lambda: nvml
""",
}
"""A machine with two GPUs, as each launcher looks for them."""

_NUMA: Final = Surroundings(
    prelude=_TWO_GPUS,
    mounts={"/sys/devices/system/node": "numa/node", "/sys/bus/pci/devices": "numa/pci"},
)


def _cgroup_mount() -> str:
    """Return where the controller of CPUs, version 1 or 2, is mounted."""
    found = "/sys/fs/cgroup"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            found = before.split(" ")[4]
            if kind == "cgroup":
                break
    return found


MACHINES: Final = [
    *(
        Row(f"a limit of one CPU, {word}", "nproc-per-node",
            f"--standalone --nproc-per-node {word}",
            surroundings=Surroundings(mounts={_cgroup_mount(): "cgroup"}), needs_root=True,
            differs=("worker count",))
        for word in ("auto", "cpu")
    ),
    Row("one CPU of several, auto", "nproc-per-node", "--standalone --nproc-per-node auto",
        surroundings=_faked(_ONE_CPU, _ONE_CPU)),
    Row("one CPU of several, cpu", "nproc-per-node", "--standalone --nproc-per-node=cpu",
        surroundings=_faked(_ONE_CPU, _ONE_CPU)),
    Row("two GPUs, auto", "nproc-per-node", "--standalone --nproc-per-node auto",
        surroundings=Surroundings(prelude=_TWO_GPUS)),
    Row("two GPUs, gpu", "nproc-per-node virtual-local-rank",
        "--standalone --nproc_per_node gpu --virtual_local_rank",
        surroundings=Surroundings(prelude=_TWO_GPUS)),
    *(
        Row(f"NUMA binding, {mode}", "numa-binding", f"{_S}--numa-binding {mode}",
            env={"PATH": "{dir}/bin:/usr/bin:/bin"}, surroundings=_NUMA, needs_root=True)
        for mode in ("node", "exclusive")
    ),
    Row("the default port", "rdzv-endpoint", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1 "
        "--rdzv-id port", job_id="port", surroundings=Surroundings(network=True), needs_root=True),
]  # fmt: skip

_NO: Final = ("usage",)


def _refused(args: str, covers: str, *differs: str, script: str = "{script}", **env: str) -> Row:
    words = (script,) if script else ()
    name = " ".join([*(f"{name}={value}" for name, value in env.items()), args or script])
    return Row(f"wrong: {name}", covers, args, words=words, env=env, differs=differs)


REFUSALS: Final = [
    # argparse's own: a sentence and exit status 2 from both.
    _refused("--no-such-flag", "usage"),
    _refused("--no-such-flag=3 --nnodes 1", "usage"),
    _refused("--log", "usage"),
    _refused("--nnodes", "usage", script=""),
    _refused("--standalone", "usage", script=""),
    _refused("--standalone=1", "usage standalone"),
    _refused("--start-method dance", "start-method"),
    _refused("--numa-binding near", "numa-binding"),
    _refused("--max-restarts many", "max-restarts"),
    _refused("--monitor-interval often", "monitor-interval"),
    _refused("--node-rank first", "node-rank"),
    _refused("--master-port http", "master-port"),
    _refused("--shutdown-timeout 1.5x", "shutdown-timeout"),
    _refused("", "PET max-restarts", PET_MAX_RESTARTS="many"),
    # What torchrun finds out later, with a traceback.
    _refused("--nnodes x", "nnodes", *_NO),
    _refused("--nnodes 0", "nnodes", *_NO),
    _refused("--nnodes 2:1", "nnodes", *_NO),
    _refused("--nnodes 1:2:3", "nnodes", *_NO),
    _refused("--nproc-per-node many", "nproc-per-node", *_NO),
    _refused("--nproc-per-node gpu", "nproc-per-node", *_NO),
    _refused("--nproc-per-node xpu", "nproc-per-node", *_NO),
    _refused("--max-restarts -1", "max-restarts", *_NO),
    _refused("--rdzv-conf join_timeout", "rdzv-conf", *_NO),
    _refused("--rdzv-backend zeus", "rdzv-backend", *_NO),
    _refused("--rdzv-backend etcd-v2 --rdzv-endpoint h:1", "rdzv-backend", *_NO),
    _refused("-r 4", "redirects", *_NO),
    _refused("-t 0:9", "tee", *_NO),
    _refused("--local-ranks-filter one", "local-ranks-filter", *_NO),
    _refused("-m --no-python", "module no-python", *_NO),
    _refused("--logs-specs mine", "logs-specs", *_NO),
    _refused("--event-log-handler file", "event-log-handler", *_NO),
    _refused("--log-dir {script}", "log-dir", *_NO),
    _refused("--shutdown-timeout -1", "shutdown-timeout", *_NO),
    _refused("--virtual-local-rank --nproc-per-node 2", "virtual-local-rank", *_NO,
             CUDA_VISIBLE_DEVICES="3"),
    _refused("", "script", *_NO, "no such script", script="no-such-file.py"),
    _refused("--standalone --nnodes 2 --rdzv-conf join_timeout=1", "standalone nnodes",
             "standalone nodes"),
    # What works here.
    _refused("-r 10:3", "redirects", "ranks above 9"),
    _refused("-m", "PET", "a switch by words", script="script", PET_STANDALONE="true"),
    _refused("", "PET", "an empty variable", PET_NNODES=""),
]  # fmt: skip

REQUIRED: Final = (
    # Flags that torch's own parser does not name, and every section of the contract besides them.
    *("argv", "local-rank-macro", "repeated", "PET", "script", "usage"),
    *("c10d", "static", "environment", "OMP_NUM_THREADS", "proxies", "stdin"),
    *("PYTHON_EXEC", "LOGLEVEL", "TORCHELASTIC_ERROR_FILE", "prefix", "error-file", "record"),
    *("failure", "signals", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"),
)
"""What the rows must cover, besides every flag of torchrun."""

ROWS: Final = [
    *_in_every_spelling(),
    *ARGUMENTS,
    *ENVIRONMENT,
    *OUTPUT,
    *LEVELS,
    *EVENTS,
    *SIGNALS,
    *FAILURES,
    *NODES,
    *MACHINES,
    *REFUSALS,
]
