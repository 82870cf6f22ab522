r"""``train_digits.py`` with ``ft_run.training.Checkpointer``: a crash costs one step.

    ft-run --standalone --nproc-per-node 2 --max-restarts 2 \
        examples/train_digits_snapshots.py --die 1:3

The network, data and options are those of ``train_digits.py``, but ``--batch-size`` is images of a
step over all workers. ``Checkpointer`` replaces its checkpoint code in two lines, and resumes from
the last step instead of the last epoch. With ``ElasticBatches`` each step has the same images for
any number of workers: nodes may come and go (``--nnodes 1:2``), and each image comes once an epoch.
"""

import os
import shutil

import torch
import torch.distributed as dist
from ft_run.training import Checkpointer, ElasticBatches
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
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
)


@record
def main() -> None:
    """Train and evaluate."""
    options = parse_args()
    make_deterministic()
    device = join_process_group(options.device)
    rank = dist.get_rank()
    folder = options.checkpoint_dir or default_folder()
    folder.mkdir(parents=True, exist_ok=True)

    train_set, test_set = load_data()
    torch.manual_seed(SEED)
    network = make_model().to(device)
    model = DistributedDataParallel(network, device_ids=None if device.type == "cpu" else [device])
    optimizer = torch.optim.Adam(network.parameters(), lr=options.lr)
    model(train_set[:1][0].to(device)).sum().backward()  # why: see train_digits.py

    data = ElasticBatches(train_set, options.batch_size, seed=SEED)
    loader = DataLoader(train_set, batch_sampler=data)
    state = {"model": model, "optimizer": optimizer, "data": data}
    steps_per_epoch = data.total(1)
    checkpointer = Checkpointer(folder, state, checkpoint_every=steps_per_epoch, seed=SEED)
    for step in checkpointer.steps(data, epochs=options.epochs):
        epoch, batch = divmod(step, steps_per_epoch)
        optimizer.zero_grad()
        for part in data.parts(loader, step):
            images, labels = (one.to(device) for one in part.batch)
            with part.sync(model):
                loss = nn.functional.cross_entropy(model(images), labels)
                (loss * part.weight).backward()  # type: ignore[no-untyped-call,unused-ignore]  # typed in a later torch
        optimizer.step()
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
