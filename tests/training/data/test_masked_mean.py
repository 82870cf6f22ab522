"""Means over counted tokens, with parts that contain none."""

import pytest
import torch
from ft_run.training import ElasticBatches
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Masked:
    """Eight samples of five tokens, of which some have no counted label."""

    def __init__(self, *ignored: int) -> None:
        torch.manual_seed(9)
        tokens = torch.randint(0, 12, (8, 5))
        self.labels = tokens.clone()
        self.labels[list(ignored)] = -100
        self.data = TensorDataset(tokens, self.labels)
        self.model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))

    def gradients(self, micro_batch: int, least: int) -> list[torch.Tensor]:
        """Return the gradients of a step with the loss of the guide.

        Args:
            micro_batch: samples of a part.
            least: divisor of a sum over no token.
        """
        data = ElasticBatches(self.data, 8, micro_batch=micro_batch, shuffle=False)
        self.model.zero_grad()
        loader = DataLoader(self.data, batch_sampler=data)
        for part in data.parts(loader, 0, count=lambda batch: (batch[1] != -100).sum()):
            tokens, labels = part.batch
            scores = self.model(tokens).flatten(0, 1)
            losses = cross_entropy(scores, labels.flatten(), reduction="sum")
            (losses / (labels != -100).sum().clamp(min=least) * part.weight).backward()
        gradients = [parameter.grad for parameter in self.model.parameters()]
        return [one.clone() for one in gradients if one is not None]


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("ignored", [(), (5,), (0, 1, 2), (0, 2, 4, 6, 7)])
def test_gradients_do_not_depend_on_micro_batch(ignored: tuple[int, ...], least: int) -> None:
    masked = Masked(*ignored)
    expected = masked.gradients(8, 1)
    assert all(gradient.isfinite().all() for gradient in expected)
    for micro_batch in (1, 2, 3):
        found = masked.gradients(micro_batch, least)
        torch.testing.assert_close(found, expected)


def test_rank_without_counted_tokens_has_gradients_of_zero() -> None:
    for gradient in Masked(*range(8)).gradients(2, 1):
        assert not gradient.any()
