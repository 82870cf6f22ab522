"""Records which forkable modules a worker has imported by its first step.

The word ``IMPORTED`` of the worker's page has a bit for each module of ``FORKABLE``.
"""

from __future__ import annotations

from collections.abc import Container

_MODELS = (
    *("llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral", "gemma2", "gemma3", "phi3"),
    *("gpt2", "gpt_neox", "gpt_oss", "deepseek_v3", "opt", "bert", "roberta", "xlm_roberta"),
    *("distilbert", "modernbert", "deberta_v2", "electra", "t5", "bart", "vit", "clip", "whisper"),
)
FORKABLE = (
    *("numpy", "scipy", "sklearn"),
    *("torch", "torch._dynamo", "torch._inductor.compile_fx"),
    *("torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor"),
    *("torch.distributed.tensor.parallel", "torch.distributed.pipelining"),
    *("torch.distributed.algorithms.ddp_comm_hooks.default_hooks",),
    *("torch.distributed.elastic.multiprocessing.errors", "torch.nn.attention.flex_attention"),
    *("torch.profiler", "torch.utils.data", "torch.utils.checkpoint"),
    *("torchdata.stateful_dataloader",),
    *("transformers", "transformers.modeling_utils", "transformers.generation.utils"),
    *("accelerate", "transformers.trainer"),
    *(f"transformers.models.{name}.modeling_{name}" for name in _MODELS),
    *("torchmetrics", "lightning.fabric", "lightning.pytorch", "pytorch_lightning"),
    *("ft_run.training", "ft_run.training.checkpointer", "ft_run.training.data"),
    *("ft_run.training.lightning", "ft_run.training.transformers"),
)
"""At most 64 names, in the order of the bits; a module follows those that it imports. Tests import
each of them and fork: it starts no thread or process, opens no device and maps no shared memory."""


def bits_of(modules: Container[str]) -> int:
    """Return the bits of the modules that are among ``modules``."""
    return sum(1 << bit for bit, name in enumerate(FORKABLE) if name in modules)


def names_of(bits: int) -> tuple[str, ...]:
    """Return the modules of some bits, in the order in which they can be imported."""
    return tuple(name for bit, name in enumerate(FORKABLE) if bits >> bit & 1)
