"""``tuned`` of earlier versions keeps scripts running."""

import pytest
from ft_run.training import tuned


@pytest.mark.parametrize(("rank", "lines"), [(None, 1), ("0", 1), ("1", 0)])
def test_default_is_returned_with_one_line_on_rank_0(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rank: str | None,
    lines: int,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert tuned("prefetch", 2, [4, 8]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    assert all(
        line.endswith("tuned('prefetch') returns its default 2: ft-run does not try other values")
        for line in said
    )
