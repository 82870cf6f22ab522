"""Embed handwritten digits (scikit-learn) with all ranks, a file for each piece; survive failures.

    ft-run --standalone --nproc-per-node 2 --max-restarts 2 examples/embed_digits.py

Ranks do not wait for each other: each gets pieces as fast as it does them. A piece may be done
twice, e.g. if a node is lost before it has reported it. So its file is written under a temporary
name and renamed, which replaces an earlier one with the same content. A new job that is given the
same folder does only the pieces that have no file yet.

It also runs under torchrun and plain Python, where pieces are split by rank.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
from ft_run.training import shared_work
from sklearn.datasets import load_digits  # type: ignore[import-untyped,import-not-found,unused-ignore]  # has no types

DIMENSIONS = 16


def main() -> None:
    """Embed all images."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("embeddings"), help="folder for the files")
    parser.add_argument("--grain", type=int, default=50, help="images in a file (default 50)")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds added to each piece")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    images = load_digits().data.astype(np.float64)
    model = principal_components(images)
    done = 0
    for piece in shared_work("embed", len(images), args.grain):
        path = args.out / f"{piece.start:06}.npy"
        if path.exists():  # from an earlier job
            continue
        time.sleep(args.pause)
        write(path, (images[piece.start : piece.stop] - images.mean(axis=0)) @ model)
        done += 1
    print(f"rank {os.environ.get('RANK', '0')} has embedded {done} pieces", flush=True)


def principal_components(images: np.ndarray) -> np.ndarray:
    """Return the model: a matrix from pixels to ``DIMENSIONS``, the same on all ranks."""
    _, _, directions = np.linalg.svd(images - images.mean(axis=0), full_matrices=False)
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    model: np.ndarray = (directions * signs[:, None])[:DIMENSIONS].T
    return model


def write(path: Path, embeddings: np.ndarray) -> None:
    """Write a file whole or not at all; two ranks may do it at once."""
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    with temporary.open("wb") as file:
        np.save(file, embeddings)
    temporary.rename(path)


if __name__ == "__main__":
    main()
