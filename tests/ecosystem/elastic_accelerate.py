"""What ``elastic.py`` trains with accelerate, in a loop of its own."""

import elastic
import torch
from accelerate import Accelerator
from ft_run.training import Checkpointer, ElasticBatches
from torch import nn
from torch.utils.data import DataLoader


def train(library, folder, dropout, log):
    accelerator = Accelerator(cpu=True)
    network = elastic.network(dropout)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(network, optimizer)
    dataset = elastic.Numbers()
    data = ElasticBatches(
        dataset, elastic.BATCH, micro_batch=elastic.MICRO_BATCH, seed=elastic.SEED
    )
    loader = DataLoader(dataset, batch_sampler=data)
    state = {"model": model, "optimizer": optimizer, "data": data}
    checkpointer = Checkpointer(folder / "checkpoints", state, checkpoint_every=1, seed=1)
    for step in checkpointer.steps(data, epochs=elastic.EPOCHS):
        for part in data.parts(loader, step):
            log.note(step, part.batch["index"])
            x, labels = (part.batch[name].to(accelerator.device) for name in ("x", "labels"))
            with part.sync(model):
                accelerator.backward(nn.functional.mse_loss(model(x), labels) * part.weight)
        optimizer.step()
        optimizer.zero_grad()
    return list(network.parameters()), accelerator.is_main_process


def expected(library):
    model = elastic.network(0.0)

    def loss(model, batch):
        return nn.functional.mse_loss(model(batch["x"]), batch["labels"])

    return elastic.plain_loop(library, model, elastic.Numbers(), loss, lambda _: 0.1)


def check_refused(library, folder): ...
