"""Trains with accelerate, saves each epoch, resumes; a plain loop says what must come out."""

import sys
from pathlib import Path

import plain
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    folder, victim = Path(sys.argv[1]), int(sys.argv[2])
    accelerator = Accelerator(cpu=True)
    die = plain.dies_now(victim)
    model = plain.network()
    model, optimizer, loader = accelerator.prepare(
        model, plain.sgd(model), DataLoader(plain.dataset(), batch_size=plain.BATCH)
    )
    done = [int(path.parent.name) for path in folder.glob("*/complete")]
    accelerator.wait_for_everyone()
    if done:
        accelerator.load_state(folder / str(max(done)))
    for epoch in range(max(done, default=-1) + 1, plain.EPOCHS):
        for index, (inputs, wanted) in enumerate(loader):
            if die and epoch == 1 and index == 2:
                raise RuntimeError("the fish has bitten")
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(inputs), wanted))
            optimizer.step()
        accelerator.save_state(folder / str(epoch))
        accelerator.wait_for_everyone()
        (folder / str(epoch) / "complete").touch()
    plain.report(
        accelerator.unwrap_model(model).parameters(),
        plain.plain_loop(accelerator.num_processes).parameters(),
        launched_by=accelerator.distributed_type.value,
        resumed=bool(done),
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
