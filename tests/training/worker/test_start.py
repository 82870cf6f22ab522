"""What a watched worker does before its script, and when it loads the hooks."""

import os
import subprocess
import sys
from pathlib import Path

from ft_run.training.worker import page_layout as layout
from ft_run.training.worker import start
from ft_run.training.worker.start import Page

FOLDER = Path(start.__file__).parent
BEGIN = """
import os, sys, time, contextlib  # as site has them in an environment
file, stacks = os.memfd_create("ft-run-page"), os.memfd_create("ft-run-stacks")
os.ftruncate(file, 4096)
package = type(sys)("hooks"); package.__path__ = [sys.argv[1]]
sys.modules["hooks"] = package
words = lambda: memoryview(os.pread(file, 4096, 0)).cast('Q')
before = set(sys.modules)
import hooks.start
def load():
    import hooks.hook
    return hooks.hook.install
hooks.start.install_or_say(file, stacks, load)
"""
HOOK = "watched = sys.modules['_ft_run_hook']"
TICKS = "print(words()[hooks.page_layout.TICKS])"
LOADED = "print('hooks.hook' in sys.modules)"


def run(*lines: str, folder: Path = FOLDER, says: str = "") -> list[str]:
    """Return what a process prints that is watched before it runs ``lines``."""
    code = "\n".join((BEGIN, *lines))
    command = [sys.executable, "-I", "-S", "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert says in done.stderr
    assert bool(says) == bool(done.stderr)
    return done.stdout.splitlines()


def test_at_start_only_what_a_bare_python_has_is_loaded() -> None:
    new = "print(*sorted({*sys.modules} - before))"
    assert run(new) == ["_ft_run_hook faulthandler hooks.page_layout hooks.start"]


def test_the_import_of_torch_loads_the_hooks(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "optim").mkdir()
    optimizers = "def register_optimizer_step_post_hook(hook): print(hook.__qualname__)\n"
    (tmp_path / "torch" / "optim" / "optimizer.py").write_text(optimizers)
    found = run(
        f"sys.path.insert(0, {str(tmp_path)!r})",
        "import json",
        LOADED,
        "import torch.optim.optimizer",
        LOADED,
        "print(any(type(finder).__name__ == '_Hooks' for finder in sys.meta_path))",
    )
    assert found == ["False", "Hook.after_step", "True", "False"]


def test_a_library_that_is_loaded_already_is_patched() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import sys; sys.modules['torch'] = sys\n" + BEGIN + LOADED,
            FOLDER,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_progress_loads_the_hooks_and_other_attributes_do_not() -> None:
    found = run(
        HOOK,
        "print(hasattr(watched, '__file__'), hasattr(watched, 'other'))",
        LOADED,
        "watched.progress(-1); watched.progress(-1)",
        TICKS,
    )
    assert found == ["False False", "False", "2"]


def test_a_child_that_loads_the_hooks_reports_nothing() -> None:
    child = "if not os.fork(): watched.progress(-1); watched.enter('a'); os._exit(0)"
    assert run(HOOK, child, "os.wait()", TICKS, "watched.progress(-1)", TICKS) == ["0", "1"]


def test_a_thread_that_loads_the_hooks_is_not_the_one_whose_phases_count() -> None:
    found = run(
        HOOK,
        "import threading",
        "thread = threading.Thread(target=watched.enter, args=('saving',))",
        "thread.start(); thread.join()",
        "from hooks import phases",
        "print(words()[phases.PHASE] == phases.BUILDING)",
        "watched.enter('saving')",
        "print(words()[phases.PHASE] == phases.SAVING)",
    )
    assert found == ["True", "True"]


def test_hooks_that_cannot_be_loaded_are_reported_once(tmp_path: Path) -> None:
    """E.g. since ft-run was removed meanwhile."""
    for name in ("start.py", "page_layout.py"):
        (tmp_path / name).write_text((FOLDER / name).read_text())
    found = run(
        HOOK,
        "watched.progress(1); watched.expect(2); watched.enter('a'); watched.leave()",
        "print(watched.page)",
        TICKS,
        folder=tmp_path,
        says="ft-run cannot watch this worker: ModuleNotFoundError",
    )
    assert found == ["None", "0"]


def test_the_script_gets_the_descriptors_that_it_would_get() -> None:
    opened = (
        "other = os.open('/dev/null', os.O_RDONLY); print(other == stacks + 1); os.close(other)"
    )
    assert run(HOOK, opened, "watched.progress(-1)", opened) == ["True", "True"]


def test_a_script_that_has_closed_all_descriptors_is_not_watched(tmp_path: Path) -> None:
    """And no other file that has the number now is written to."""
    found = run(
        HOOK,
        "os.closerange(3, 200)",
        f"other = [os.open({str(tmp_path / 'other')!r}, os.O_RDWR | os.O_CREAT)]",
        "while other[-1] < 150: other.append(os.dup(other[0]))",
        "os.write(other[0], b'a' * 4096)",
        "watched.progress(1)",
        "print(os.pread(other[0], 5000, 0) == b'a' * 4096)",
        says="is not the file that is shared with ft-run",
    )
    assert found == ["True"]


def test_a_page_begins_without_what_another_process_has_left() -> None:
    words = memoryview(bytearray(layout.PAGE_BYTES)).cast("Q")
    Page(words)
    for word in range(1, len(words)):
        words[word] = 7
    Page(words, 3, 4)
    left = {word: value for word, value in enumerate(words) if value}
    assert left.pop(layout.SINCE_NS) > 7
    assert left == {layout.PID: os.getpid(), layout.STACKS_FD: 4, layout.WANTED: 7}
    assert not words[layout.TICKS]
