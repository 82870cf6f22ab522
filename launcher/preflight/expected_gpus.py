"""Which GPUs a check must find: from the options, and from the machine. No torch."""

import os
from collections.abc import Mapping
from pathlib import Path

from ..machine.accelerators import AUTO, AcceleratorKind, find_accelerators

_KINDS = (AcceleratorKind.NVIDIA, AcceleratorKind.AMD)
"""The kinds of GPUs that are torch's ``cuda`` devices."""


def gpus_asked_by(nproc_per_node: str, accelerator: str) -> str:
    """Return the option that requires GPUs, as the user wrote it; empty if no option does."""
    if accelerator in {kind.value for kind in _KINDS}:
        return f"--accelerator={accelerator}"
    return "--nproc-per-node=gpu" if nproc_per_node == "gpu" and accelerator == AUTO else ""


def shown_gpus(
    accelerator: str, environ: Mapping[str, str] | None = None, *, root: Path = Path("/")
) -> dict[str, str]:
    """Return the kinds of GPUs that the workers should find, and how they were counted, as text.

    Args:
        accelerator: ``--accelerator``; the machine is inspected with ``auto`` only.
        environ: has the ``…_VISIBLE_DEVICES`` variables; None: that of this process.
        root: the directory below which ``sys`` and ``dev`` are looked up.
    """
    if accelerator != AUTO:
        return {}
    variables = os.environ if environ is None else environ
    found = [find_accelerators(kind, variables, root=root) for kind in _KINDS]
    return {gpus.kind.value: gpus.source for gpus in found if gpus.count}
