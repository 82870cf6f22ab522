"""``ft-run status``: what a master knows, as a table or as JSON."""

import asyncio
import json
import sys
from typing import Any

from .. import exit_codes
from ..errors import RendezvousError
from .options import StatusOptions


def show_status(options: StatusOptions) -> int:
    """Ask the master and print its answer; return the exit status.

    Raises:
        RendezvousError: no master answers at the endpoint.
    """
    status = asyncio.run(_ask(options))
    if options.json:
        print(json.dumps(status, indent=2))
    else:
        _print_table(status)
    return exit_codes.SUCCESS


async def _ask(options: StatusOptions) -> dict[str, Any]:
    import grpc
    import grpc.aio

    from ..protos import rendezvous_pb2 as pb
    from ..rendezvous.channel_options import SERVICE, client_options

    async with grpc.aio.insecure_channel(
        str(options.endpoint), options=client_options(options.timeout_s)
    ) as channel:
        ask: Any = channel.unary_unary(
            f"/{SERVICE}/Status",
            request_serializer=pb.StatusRequest.SerializeToString,
            response_deserializer=pb.StatusReply.FromString,
        )
        try:
            reply: pb.StatusReply = await ask(pb.StatusRequest(), timeout=options.timeout_s)
        except grpc.aio.AioRpcError as error:
            raise RendezvousError(
                f"no ft-run master answers at {options.endpoint} within {options.timeout_s:g} s; "
                "is the endpoint right, and is the job still running?"
            ) from error
    return _as_dict(reply)


def _as_dict(reply: Any) -> dict[str, Any]:
    """Return the answer with every field present, also those that are zero."""
    names = [field.name for field in reply.DESCRIPTOR.fields if field.name != "nodes"]
    status = {name: getattr(reply, name) for name in names}
    status["nodes"] = [
        {field.name: getattr(node, field.name) for field in node.DESCRIPTOR.fields}
        for node in sorted(reply.nodes, key=lambda node: (node.node_rank < 0, node.node_rank))
    ]
    return status


def _print_table(status: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from .events_text import duration, nodes_wanted

    console = Console(file=sys.stdout, highlight=False)
    wanted = nodes_wanted(status["min_nodes"], status["max_nodes"])
    console.print(
        f"job {status['job_id'] or '(no node has come yet)'} · {status['phase']} · "
        f"round {status['round']} · nodes {status['world_nodes']} of {wanted} · "
        f"restarts {status['restarts']}/{status['max_restarts']} · "
        f"round up {duration(status['round_uptime_s'])} · master up {duration(status['uptime_s'])}",
        markup=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("NODE", "HOST", "ADDRESS", "ROLE", "RANKS", "PHASE", "CONNECTED"):
        table.add_column(title, overflow="fold")
    for node in status["nodes"]:
        first, size = node["rank_offset"], node["local_world_size"]
        ranks = "-" if first < 0 else f"{first}-{first + size - 1}" if size > 1 else str(first)
        spare = node["node_rank"] < 0 and node["phase"] == "ready" and status["round"] >= 0
        table.add_row(
            "-" if node["node_rank"] < 0 else str(node["node_rank"]),
            node["host"],
            node["address"],
            node["role"],
            ranks,
            "spare" if spare else node["phase"],
            "yes" if node["attached"] else "no",
        )
    console.print(table)
