"""The flags by which the nodes of a job meet, shared by the commands that run a node."""

from ... import defaults
from . import values
from .command_line import Flag

_RENDEZVOUS = "Rendezvous"

CONF_KEYS = (
    "join_timeout, last_call_timeout, node_grace, node_timeout, rescale_delay (seconds, or never)"
)
"""The keys of ``--rdzv-conf`` that a master knows, with their unit."""


def rendezvous_flags() -> list[Flag]:
    """Return how nodes find each other."""
    return [
        Flag(
            "--nnodes",
            group=_RENDEZVOUS,
            metavar="N|MIN:MAX",
            read=values.nnodes,
            help="Nodes of the job; default 1. With MIN:MAX the job grows and shrinks.",
        ),
        Flag(
            "--node-unit",
            group=_RENDEZVOUS,
            metavar="N",
            read=values.whole(1),
            ours=True,
            help="Only multiples of N nodes make a world; default 1.",
        ),
        Flag(
            "--rdzv-endpoint",
            group=_RENDEZVOUS,
            metavar="HOST[:PORT],...",
            read=values.listed_endpoints,
            help=f"Where the master is, or will be; default port {defaults.ENDPOINT_PORT}. Three or"
            " five: the hosts that may lead; the job outlives one of three, two of five.",
        ),
        Flag(
            "--rdzv-id",
            group=_RENDEZVOUS,
            metavar="ID",
            read=values.string,
            help="The id of the job, the same on every node.",
        ),
        Flag(
            "--standalone",
            group=_RENDEZVOUS,
            help="One node by itself: no endpoint, no open port.",
        ),
        Flag(
            "--rdzv-conf",
            group=_RENDEZVOUS,
            metavar="K=V,...",
            read=values.string,
            help=f"Times and more: {CONF_KEYS}, master_timeout, connect_timeout, is_host; with"
            " several endpoints lease, fence.",
        ),
        Flag(
            "--rescale-delay",
            group=_RENDEZVOUS,
            metavar="SECONDS|never",
            read=values.seconds_or_never,
            ours=True,
            help="How long a new node waits for more before the world grows; default"
            f" {defaults.RESCALE_DELAY_S:g}. never: it enters at the next restart.",
        ),
    ]


def address_flags() -> list[Flag]:
    """Return the addresses and ports of nodes."""
    return [
        Flag(
            "--node-rank",
            group=_RENDEZVOUS,
            metavar="N",
            read=values.whole(0),
            help="Pin the rank of this node. With --master-addr, node 0 hosts the master.",
        ),
        Flag(
            "--master-addr",
            group=_RENDEZVOUS,
            metavar="HOST",
            read=values.host,
            help=f"Instead of --rdzv-endpoint: the host of node 0; default {defaults.MASTER_ADDR}.",
        ),
        Flag(
            "--master-port",
            group=_RENDEZVOUS,
            metavar="PORT",
            read=values.whole(0, values.MAX_PORT),
            help=f"The port with --master-addr; default {defaults.MASTER_PORT}. On one node"
            " it is MASTER_PORT.",
        ),
        Flag(
            "--local-addr",
            group=_RENDEZVOUS,
            metavar="ADDR",
            read=values.host,
            help="The address other nodes reach this one by; default: the one that routes to"
            " the master.",
        ),
        Flag(
            "--worker-port",
            group=_RENDEZVOUS,
            metavar="PORT|LO-HI",
            read=values.ports,
            ours=True,
            help="The port, or the range to take it from, for MASTER_PORT; default: any.",
        ),
        Flag(
            "--store",
            group=_RENDEZVOUS,
            metavar="worker|separate",
            read=values.one_of("worker", "separate"),
            ours=True,
            help=f"What hosts the store of a round: rank 0 ({defaults.STORE}, the default), or a"
            " process beside it that outlives it (separate).",
        ),
    ]
