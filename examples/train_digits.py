"""Train a small network on scikit-learn's handwritten digits, and survive the loss of any rank.

    ft-run --standalone --nproc-per-node 2 --max-restarts 2 examples/train_digits.py --die 1:3

What a script needs to be restartable, in the order of ``main``:

1. read rank and world size from the environment at each start;
2. load the newest complete checkpoint, which rank 0 chooses for all ranks;
3. write a checkpoint after every epoch, atomically;
4. fail with an exception or a timeout: the launcher restarts all ranks.

All randomness is seeded: with the same number of workers on the same kind of machine, a run that
was restarted ends with bit-identical weights to an undisturbed one.

Checkpoints are written to ``--checkpoint-dir``, which is always resumed from and never removed. The
default is ``digits-checkpoints-<run id>`` in the working directory, which is removed when the run
succeeds; an interrupted job resumes from it under the same ``--rdzv-id``. With several nodes, use
shared storage.
"""

import argparse
import hashlib
import io
import os
import re
import shutil
import signal
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits  # type: ignore[import-untyped,import-not-found,unused-ignore]  # has no types
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SEED = 0
TEST_IMAGES = 360
PEER_TIMEOUT = timedelta(seconds=60)
"""Time-out of collectives, for a peer that hangs; a dead one is detected much sooner."""


# --- options ------------------------------------------------------------------------------------


class Death(NamedTuple):
    """The value of ``--die``: ``rank`` is killed once in the middle of ``epoch`` (>= 1)."""

    rank: int
    epoch: int


def rank_and_epoch(text: str) -> Death:
    """Parse ``RANK:EPOCH``."""
    rank, epoch = text.split(":")
    return Death(int(rank), int(epoch))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse ``argv`` (default: the command line); exit with code 2 on a usage error."""
    parser = argparse.ArgumentParser(
        description="Train a small network on scikit-learn's handwritten digits."
    )
    parser.add_argument("--epochs", type=int, default=10, metavar="N")
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="images per worker and step"
    )
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate of Adam")
    parser.add_argument(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        help="resume from and keep checkpoints here (default: digits-checkpoints-<run id>,"
        " removed when the run succeeds)",
    )
    parser.add_argument(
        "--save-weights",
        type=Path,
        metavar="PATH",
        help="write the final weights here; equal weights give equal bytes",
    )
    parser.add_argument(
        "--die",
        type=rank_and_epoch,
        metavar="RANK:EPOCH",
        help="kill this rank with SIGKILL once, in the middle of this epoch, to show a restart",
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: GPUs if any"
    )
    return parser.parse_args(argv)


# --- checkpoints --------------------------------------------------------------------------------


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that readers see all of it or nothing, even after a power cut.

    The temporary file is in the same folder, because a rename is atomic only within one file
    system. The file is synced before the rename, and the folder after it.
    """
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save_checkpoint(folder: Path, checkpoint: dict[str, Any]) -> None:
    """Write ``checkpoint`` to ``folder``."""
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    write_atomically(folder / f"epoch-{checkpoint['epoch']:06}.pt", buffer.getvalue())


def load_latest_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the newest checkpoint in ``folder``; None: there is none."""
    path = max(folder.glob("epoch-*.pt"), default=None)
    if path is None:
        return None
    print(f"resuming from {path}", flush=True)
    checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return checkpoint


def default_folder() -> Path:
    """Return the default of ``--checkpoint-dir``, specific to this job."""
    run_id = os.environ.get("TORCHELASTIC_RUN_ID") or uuid.uuid4().hex[:8]
    return Path("digits-checkpoints-" + re.sub(r"[^\w.-]", "_", run_id))


def canonical_bytes(weights: dict[str, Tensor]) -> bytes:
    """Return ``weights`` as bytes that depend only on names, types, shapes and values."""
    parts = []
    for name, tensor in sorted(weights.items()):
        parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        parts.append(tensor.cpu().numpy().tobytes())
    return b"".join(parts)


# --- training -----------------------------------------------------------------------------------


def make_model() -> nn.Module:
    """Return the network: 8 × 8 gray values in, 10 scores out."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 4 * 4, 10),
    )


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return the training set and the test set; the split is the same everywhere."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> Tensor:
    """Take one step and return this rank's loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()  # type: ignore[no-untyped-call,unused-ignore]  # typed in a later torch
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def evaluate(network: nn.Module, test_set: TensorDataset, device: torch.device) -> float:
    """Return the accuracy on ``test_set``; each rank evaluates a part of it."""
    network.eval()
    images, labels = test_set[dist.get_rank() :: dist.get_world_size()]
    correct = (network(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    dist.all_reduce(correct)
    return int(correct) / len(test_set)


def report(network: nn.Module, accuracy: float, save_weights: Path | None) -> None:
    """Print the results, and write the weights to ``save_weights``."""
    weights = canonical_bytes(network.state_dict())
    if save_weights is not None:
        save_weights.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(save_weights, weights)
    print(f"weights sha256: {hashlib.sha256(weights).hexdigest()}", flush=True)
    print(f"test accuracy: {accuracy:.4f}", flush=True)


def join_process_group(device_choice: str) -> torch.device:
    """Initialize the process group from the environment; return this rank's device."""
    if "RANK" not in os.environ:  # plain `python train_digits.py`: a world of one
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if device_choice == "cpu" or (device_choice == "auto" and not torch.cuda.is_available()):
        dist.init_process_group("gloo", timeout=PEER_TIMEOUT)
        return torch.device("cpu")
    local_rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local_rank >= gpus:
        raise SystemExit(
            f"no GPU for local rank {local_rank}: this node has {gpus};"
            " start at most that many workers, or use --device cpu"
        )
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", timeout=PEER_TIMEOUT)
    return torch.device("cuda", local_rank)


def make_deterministic() -> None:
    """Make torch use deterministic algorithms only."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # The number of threads changes the order of sums; one is fastest for this small network.
    torch.set_num_threads(1)


def resume(
    folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> int:
    """Load the newest checkpoint, if any, and return the number of completed epochs.

    Rank 0 reads and broadcasts it, so that all ranks resume from the same epoch, also without
    shared storage.
    """
    box = [load_latest_checkpoint(folder) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0, device=device)
    checkpoint = box[0]
    if checkpoint is None:
        return 0
    network.load_state_dict(checkpoint["model"])
    lr = optimizer.param_groups[0]["lr"]
    optimizer.load_state_dict(checkpoint["optimizer"])
    optimizer.param_groups[0]["lr"] = lr  # of the command line, not of the checkpoint
    return int(checkpoint["epoch"])


def die_once(death: Death, folder: Path) -> None:
    """Kill this process on the job's first attempt.

    Later attempts have a restart count above 0, or find the marker if the launcher was restarted.
    """
    marker = folder / f"died-{death.rank}-{death.epoch}"
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" and not marker.exists():
        marker.touch()
        print(f"rank {death.rank} sends itself SIGKILL in epoch {death.epoch}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def train(
    options: argparse.Namespace, train_set: TensorDataset, folder: Path, device: torch.device
) -> nn.Module:
    """Train from the newest checkpoint in ``folder`` up to ``--epochs``; return the network."""
    rank, world = dist.get_rank(), dist.get_world_size()
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(train_set, seed=SEED)
    loader = DataLoader(train_set, batch_size=options.batch_size, sampler=sampler)

    torch.manual_seed(SEED)
    network = make_model().to(device)
    model = DistributedDataParallel(network, device_ids=None if device.type == "cpu" else [device])
    optimizer = torch.optim.Adam(network.parameters(), lr=options.lr)
    # DDP rearranges its gradient buckets after the first backward pass, which changes the order of
    # sums over three or more ranks. An extra pass makes fresh and resumed runs equal.
    model(train_set[:1][0].to(device)).sum().backward()

    done = resume(folder, network, optimizer, device)
    for epoch in range(done + 1, options.epochs + 1):
        sampler.set_epoch(epoch)
        torch.manual_seed(SEED + epoch * world + rank)
        loss = torch.zeros((), device=device)
        for step, (images, labels) in enumerate(loader):
            loss += train_step(model, optimizer, images.to(device), labels.to(device))
            if options.die == Death(rank, epoch) and step == len(loader) // 2:
                die_once(options.die, folder)
        dist.all_reduce(loss)
        if rank == 0:
            # No state of random number generators: each epoch has its own seed.
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
            save_checkpoint(folder, {"epoch": epoch, **state})
            mean = loss.item() / len(loader) / world
            print(f"epoch {epoch}/{options.epochs} loss {mean:.4f} restarts {restarts}", flush=True)
    return network


@record
def main() -> None:
    """Train and evaluate. ``record`` passes exceptions to the launcher's report."""
    options = parse_args()
    make_deterministic()
    device = join_process_group(options.device)
    folder = options.checkpoint_dir or default_folder()
    folder.mkdir(parents=True, exist_ok=True)

    train_set, test_set = load_data()
    network = train(options, train_set, folder, device)
    accuracy = evaluate(network, test_set, device)
    if dist.get_rank() == 0:
        report(network, accuracy, options.save_weights)
    dist.barrier()  # from here on no rank needs the checkpoints
    dist.destroy_process_group()
    if options.checkpoint_dir is None and os.environ["LOCAL_RANK"] == "0":
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
