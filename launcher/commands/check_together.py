"""``ft-run check --nnodes N``: the checks between several nodes, and no job after them."""

from ...checks.floors import floor_texts
from ...rendezvous.protocol.check_messages import CheckSpec
from ..options import CheckOptions, LadderOptions, LaunchOptions, RendezvousOptions
from .launch import launch


def check_together(options: CheckOptions, rendezvous: RendezvousOptions) -> int:
    """Check this node together with others; return the exit status of this node.

    Args:
        options: how to check.
        rendezvous: how the nodes meet.

    Raises:
        FtRunError: what a user can cause: one sentence and an exit code.
    """
    spec = CheckSpec(
        level=options.level,
        timeout_s=options.timeout_s,
        only=True,
        is_strict=options.is_strict,
        straggler_threshold=options.straggler_threshold,
        compute_threshold=options.compute_threshold,
        exclude_straggler=options.exclude_straggler,
        floors=floor_texts(options.floors),
    )
    return launch(
        LaunchOptions(
            script="",
            rendezvous=rendezvous,
            nproc_per_node=options.nproc_per_node,
            accelerator=options.accelerator,
            virtual_local_rank=options.virtual_local_rank,
            checks=LadderOptions(spec, options.report, options.json, options.log_dir),
            preload=options.preload,
            remarks=options.remarks,
        )
    )
