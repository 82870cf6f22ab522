"""Command line: where the output goes, which files there are, and the events."""

from typing import Final

from ft_run.tests.conformance.launchers import Surroundings
from ft_run.tests.conformance.row import PAIR, Row

_LOUD: Final = """
say(f"out of {rank}")
say(f"err of {rank}", sys.stderr)
sys.stdout.write("@@one\\r@@two\\r\\n@@three\\n\\n")
say("caf\\u00e9 \\U0001f600")
"""

OUTPUT: Final = [
    Row(f"{args or 'no flags'}", covers, f"{PAIR}--log-dir {{logs}} {args}", script=_LOUD)
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
    Row("no log folder", "log-dir redirects tee", PAIR + "-r 1 -t 2", script=_LOUD),
    Row("/dev/null", "log-dir redirects tee", PAIR + "--log-dir /dev/null -r 1 -t 2", script=_LOUD),
    Row("a log folder by variables", "log-dir PET", PAIR, script=_LOUD,
        env={"PET_LOG_DIR": "{logs}/deep/er", "PET_TEE": "3", "PET_REDIRECTS": "1"}),
    Row("a prefix of one's own", "prefix", PAIR + "-t 3 --role trainer", script=_LOUD, env={
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}:${rank}/${local_rank} ${x}> "}),
]  # fmt: skip

_PREFIX: Final = "<${hostname}|${role_name}|$rank|${local_rank}|${x}>"
"""Without a space: the flags of a row are split there."""

PREFIXES: Final = [
    Row("a prefix by a flag", "log-line-prefix-template prefix",
        f"{PAIR}-t 3 --role a --log-line-prefix-template {_PREFIX}", script=_LOUD,
        env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "not this"},
        surroundings=Surroundings(hostname="localhost"), needs_root=True, since="2.15"),
    Row("no prefix by a flag", "log-line-prefix-template prefix",
        f"{PAIR}-t 3 --log_line_prefix_template=", script=_LOUD,
        env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}: "}, since="2.15"),
    Row("a prefix by a variable", "log-line-prefix-template PET", PAIR + "-t 1", script=_LOUD,
        env={"PET_LOG_LINE_PREFIX_TEMPLATE": "$rank of ${local_rank}: "}, since="2.15"),
]  # fmt: skip

LEVELS: Final = [
    Row(f"LOGLEVEL={level}", "LOGLEVEL", "--standalone", env={"LOGLEVEL": level})
    for level in ("DEBUG", "ERROR")
]

EVENTS: Final = [
    Row("events", "event-log-handler", PAIR + "--event-log-handler console", differs=("events",)),
    Row("events of failures", "event-log-handler",
        PAIR + "--event-log-handler console --max-restarts 1", script="""
together()
if rank == "1":
    raise SystemExit(3)
while True:
    signal.pause()
""", differs=("events", "ended workers")),
]  # fmt: skip
