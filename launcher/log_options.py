"""Options for the workers' output and ft-run's own lines, with their flags."""

from msgspec import Struct

from ..events.event import Severity
from ..rendezvous.protocol.endpoint import Endpoint
from .flags import values
from .flags.flag import option
from .flags.headings import LOGS
from .flags.stream_values import StreamSelection, filters, local_ranks, streams


class LogOptions(Struct, frozen=True):
    """The destinations of the workers' output."""

    log_dir: str | None = LOGS.option(
        None,
        "--log-dir DIR",
        "Directory for log files (default: a temporary directory).",
        values.string_or_none,
    )
    redirects: StreamSelection = LOGS.option(
        StreamSelection(),
        "-r, --redirects STREAMS",
        "Write output to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, or by"
        " local rank, e.g. 0:1,10:3 (default: 0).",
        streams,
    )
    tee: StreamSelection = LOGS.option(
        StreamSelection(),
        "-t, --tee STREAMS",
        "Write output to files and to the console: 0 none, 1 stdout, 2 stderr, 3 both, or by"
        " local rank, e.g. 0:1,10:3 (default: 0).",
        streams,
    )
    events: str | None = LOGS.option(
        None,
        "--events FILE",
        "Write each event of this node as a line of JSON to a file, which is rotated at 64 MB, or"
        " to standard output (-). With --log-dir, its directory has events.jsonl too.",
        values.events_target,
        ours=True,
    )
    level: Severity | None = option(
        None,
        LOGS(
            "-q, --quiet",
            "Show only warnings and failures on the console: nothing when a job succeeds. There is"
            " no live line, and no table of where the time went.",
            ours=True,
        ),
        LOGS(
            "-v, --verbose",
            "Show more lines of ft-run, as LOGLEVEL=DEBUG does.",
            ours=True,
        ),
    )
    """The lowest severity that the console shows; None to use ``LOGLEVEL``."""
    is_json: bool = LOGS.option(
        False,
        "--log-format text|json",
        "Format of ft-run's own lines on the console: text, or the events as JSON, one in each line"
        " (default: text).",
        values.is_second("text", "json"),
        ours=True,
    )
    metrics: Endpoint | None = LOGS.option(
        None,
        "--metrics [ADDR:]PORT",
        "Serve metrics of this node for Prometheus at http://ADDR:PORT/metrics (default address:"
        " 127.0.0.1). At other addresses, a job with a token serves HTTPS.",
        values.metrics_address,
        ours=True,
    )
    """The host is loopback by default; port 0 means a free port."""
    prefix_template: str = LOGS.option(
        "",
        "--log-line-prefix-template TEMPLATE",
        "Prefix of each console line of a stream given to --tee, with ${role_name}, ${rank},"
        " ${local_rank} and ${hostname} (default: [${role_name}${local_rank}]:, or"
        " TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE).",
        since="2.15",
    )
    console_local_ranks: frozenset[int] | None = LOGS.option(
        None,
        "--local-ranks-filter RANKS",
        "Local ranks whose output is shown on the console, e.g. 0,1 (default: all).",
        local_ranks,
    )
    stdout_filters: tuple[str, ...] = LOGS.option(
        (),
        "--duplicate-stdout-filters WORDS",
        "Copy the lines of stdout that contain one of these comma-separated words to a separate"
        " file; ,, stands for a comma.",
        filters,
    )
    stderr_filters: tuple[str, ...] = LOGS.option(
        (),
        "--duplicate-stderr-filters WORDS",
        "Copy the lines of stderr that contain one of these comma-separated words to a separate"
        " file; ,, stands for a comma.",
        filters,
    )
