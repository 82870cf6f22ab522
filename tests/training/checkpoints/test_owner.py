"""The owner of a snapshot, and the turns of the Checkpointers of a process."""

import gc

import pytest
from ft_run.training.checkpoints.coordination import Turn, owner_of


class Checkpointer:
    def __init__(self, directory: str, log: list[str]) -> None:
        self.directory, self._log = directory, log

    def settle(self) -> None:
        self._log.append(f"{self.directory} settles")

    def let_go(self) -> None:
        self._log.append(f"{self.directory} lets go")


def test_owner_depends_on_directory_and_names() -> None:
    owners = {owner_of(*of) for of in (("/a", ["x", "y"]), ("/b", ["x", "y"]), ("/a", ["x"]))}
    assert len(owners) == 3
    assert owner_of("/a", ["y", "x"]) in owners
    assert all(0 < owner < 1 << 63 for owner in owners)


def test_turn_passes_when_the_last_has_ended() -> None:
    log: list[str] = []
    turn, red, blue = Turn(), Checkpointer("red", log), Checkpointer("blue", log)
    assert turn.begin(red, red)
    assert not turn.begin(red, red)
    with pytest.raises(ValueError, match="for blue, while the one for red is in use") as error:
        turn.begin(blue, blue)
    assert "put all into one state, or pass snapshot_every=None" in str(error.value)
    turn.end(blue)  # without effect
    with pytest.raises(ValueError, match="in use"):
        turn.begin(blue, blue)
    turn.end(red)
    assert not turn.begin(red, red)  # a later step revives it
    turn.end(red)
    assert turn.begin(blue, blue)
    assert log == ["red settles", "red lets go"]
    with pytest.raises(ValueError, match="for red, while the one for blue"):
        turn.begin(red, red)


def test_deleted_checkpointer_is_not_live() -> None:
    log: list[str] = []
    turn, red, blue = Turn(), Checkpointer("red", log), Checkpointer("blue", log)
    sent = Checkpointer("replica", log)  # its buffers outlive it while a thread sends them
    turn.begin(red, sent)
    del red
    gc.collect()
    assert turn.begin(blue, blue)
    assert log == ["replica lets go"]
