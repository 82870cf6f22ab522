"""Seeing which processes import torch."""

from pathlib import Path


def torch_notes(path: Path) -> str:
    """Return a ``sitecustomize`` that notes in a file which processes look for torch.

    It is there to be looked for where it has been imported.
    """
    return f"""
import sys
class Notes:
    def find_spec(name, *_):
        if name == "torch":
            open({str(path)!r}, "a").write("torch\\n")
sys.meta_path.insert(0, Notes)
"""
