"""What ranks agree on, in processes that know each other by gloo."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import torch.distributed as dist
from ft_run.training.ranks import Ranks

file, rank, texts = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
if len(texts) > 1:
    dist.init_process_group("gloo", f"file://{file}", world_size=len(texts), rank=rank)
ranks = Ranks()
print(repr(ranks.first_text(None if texts[rank] == "none" else texts[rank])), ranks.minimum(rank))
if len(texts) > 1:
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["none"], "None [0]"),
        pytest.param(["a word"], "'a word' [0]", marks=pytest.mark.slow),
        pytest.param(["none", "none"], "None [0]", marks=pytest.mark.slow),
        (["none", "schön ✓", "another"], "'schön ✓' [0]"),
        pytest.param(["none", ""], "'' [0]", marks=pytest.mark.slow),
        (["none", "file \udcff"], "'file ?' [0]"),
        (["x" + "é" * 1500, "none"], "'x" + "é" * 999 + "' [0]"),
    ],
)
def test_the_text_of_the_first_rank_that_has_one(
    tmp_path: Path, texts: list[str], found: str
) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "file"), str(rank), *texts],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(texts))
    ]
    outputs = [process.communicate(timeout=60)[0].strip() for process in running]
    assert outputs == [found] * len(texts)
