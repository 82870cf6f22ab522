r"""``train_digits.py`` with ``ft_run.training.Checkpointer``: a crash costs one step.

    ft-run --standalone --nproc-per-node 2 --max-restarts 2 \
        examples/train_digits_snapshots.py --die 1:3

The network, data and options are those of ``train_digits.py``. ``Checkpointer`` replaces its
checkpoint code in two lines, and resumes from the last step instead of the last epoch.
"""

import os
import shutil

import torch
import torch.distributed as dist
from ft_run.training import Checkpointer
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from train_digits import (
    SEED,
    Death,
    default_folder,
    die_once,
    evaluate,
    join_process_group,
    load_data,
    make_deterministic,
    make_model,
    parse_args,
    report,
    train_step,
)


@record
def main() -> None:
    """Train and evaluate."""
    options = parse_args()
    make_deterministic()
    device = join_process_group(options.device)
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = options.checkpoint_dir or default_folder()
    folder.mkdir(parents=True, exist_ok=True)

    train_set, test_set = load_data()
    steps_per_epoch = len(train_set) // (options.batch_size * world)
    torch.manual_seed(SEED)
    network = make_model().to(device)
    model = DistributedDataParallel(network, device_ids=None if device.type == "cpu" else [device])
    optimizer = torch.optim.Adam(network.parameters(), lr=options.lr)
    model(train_set[:1][0].to(device)).sum().backward()  # why: see train_digits.py

    state = {"model": model, "optimizer": optimizer}
    checkpointer = Checkpointer(folder, state, checkpoint_every=steps_per_epoch)
    for step in checkpointer.steps(options.epochs * steps_per_epoch):
        epoch, batch = divmod(step, steps_per_epoch)
        # Seeded by the step, so that no generator state needs saving.
        torch.manual_seed(SEED + step * world + rank)
        order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(epoch))
        begin = batch * options.batch_size
        images, labels = train_set[order[rank::world][begin : begin + options.batch_size]]
        loss = train_step(model, optimizer, images.to(device), labels.to(device))
        if batch == 0 and rank == 0:
            print(f"epoch {epoch + 1}/{options.epochs} loss {loss:.4f}", flush=True)
        if options.die == Death(rank, epoch + 1) and batch == steps_per_epoch // 2:
            die_once(options.die, folder)

    accuracy = evaluate(network, test_set, device)
    if rank == 0:
        report(network, accuracy, options.save_weights)
    dist.barrier()  # from here on no rank needs the checkpoints
    dist.destroy_process_group()
    if options.checkpoint_dir is None and os.environ["LOCAL_RANK"] == "0":
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
