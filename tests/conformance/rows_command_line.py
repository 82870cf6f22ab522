"""Command line: spellings of flags, arguments of the script, and what is refused."""

from typing import Final

from ft_run.tests.conformance.row import PAIR, Row, spelled

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


def in_every_spelling() -> "list[Row]":
    """Return rows that give every flag of torchrun in each way that it can be given."""
    rows = []
    for how in _SPELLINGS:
        flags = {flag: value for flag, value in _MANY.items() if value or how != "equals"}
        rows += [
            Row(
                f"flags by {how}",
                covers=" ".join(flags),
                script=_COLOURS,
                job_id="job-7",
                **spelled(flags, how),
            ),
            Row(
                f"static flags by {how}",
                covers=" ".join(_STATIC),
                words=("script", "-x"),
                job_id="none",
                **spelled(_STATIC, how if how != "equals" else "dashes"),
            ),
            Row(
                f"switches by {how}",
                covers=" ".join(_PROGRAM),
                words=("./program", "-x"),
                **spelled(_PROGRAM, how if how != "equals" else "dashes"),
            ),
        ]
    return rows


ARGUMENTS: Final = [
    Row(
        "arguments of the script",
        "argv",
        PAIR,
        words=("{script}", "--nnodes", "7", "a", "--", "-m", "", "a b", "--help", "é"),
    ),
    Row("a dash dash before the script", "argv", PAIR + "--", words=("{script}", "-x", "--", "y")),
    Row("a dash dash after the script", "argv", PAIR, words=("{script}", "--", "--w=9", "--", "y")),
    Row("two dash dashes after the script", "argv", PAIR, words=("{script}", "--", "--", "y")),
    Row(
        "a dash dash before and after the script",
        "argv",
        PAIR + "--",
        words=("{script}", "--", "-y"),
    ),
    Row(
        "local_rank in arguments",
        "local-rank-macro",
        PAIR,
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
    _refused("--print-completion csh", "print-completion"),
    _refused("--print-completion", "print-completion", script=""),
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
