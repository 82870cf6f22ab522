"""What is read of a dump: frames of the main thread, without those that watching has put there."""

from pathlib import Path

from ft_run.launcher.stacks.dump import main_thread
from ft_run.rendezvous.protocol.stacks import FRAMES_MAX
from ft_run.training.worker import hook

DUMP = f"""Current thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 725 in __next__
  File "{hook.__file__}", line 180 in next_batch
  File "/home/me/train.py", line 12 in main
"""


THREADS = """Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f0000000001 (most recent call first):
  File "<frozen runpy>", line 88 in _run_code
"""


def test_the_main_thread_is_the_last() -> None:
    (frame,) = main_thread(THREADS)
    assert (frame.file, frame.function, frame.is_library) == ("<frozen runpy>", "_run_code", True)


def test_of_a_deep_stack_the_innermost_frames_are_read() -> None:
    lines = [f'  File "/home/me/a.py", line {number} in f' for number in range(1, 200)]
    frames = main_thread("\n".join(["Thread 0x1 (most recent call first):", *lines]))
    assert [frame.line for frame in frames] == list(range(1, FRAMES_MAX + 1))


def test_the_fork_server_is_no_frame_of_the_worker(tmp_path: Path) -> None:
    server = "/x/ft_run/launcher/spawner/forkserver_main.py"
    dump = f'{DUMP}  File "{server}", line 20 in <module>\n'
    assert [frame.file for frame in main_thread(dump)][-1] == "train.py"


def test_the_innermost_line_and_those_of_the_users_own_code_are_told(tmp_path: Path) -> None:
    for name in ("train.py", "site-packages/lib.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("  first()\n")
    library = "site-packages/lib.py"
    lines = [f'  File "{tmp_path / name}", line 1 in f' for name in (library, library, "train.py")]
    frames = main_thread("\n".join(["Thread 0x1 (most recent call first):", *lines]))
    sources = [("lib.py", "first()"), ("lib.py", ""), ("train.py", "first()")]
    assert [(frame.file, frame.source) for frame in frames] == sources


def test_the_hook_around_a_data_loader_is_not_taken_for_code_of_the_user() -> None:
    frames = main_thread(DUMP)
    assert [(frame.file, frame.line, frame.is_library) for frame in frames] == [
        ("selectors.py", 415, True),
        ("torch/utils/data/dataloader.py", 725, True),
        ("train.py", 12, False),
    ]


BACKWARD = """Current thread 0x00007f0000000001 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/autograd/graph.py", line 869 in _engine_run_backward
  File "/home/me/train.py", line 4 in <module>
"""
OF_TORCH = """Thread 0x00007f0000000003 (most recent call first):
  File "/home/me/train.py", line 8 in hook
"""
OF_PYTHON = """Thread 0x00007f0000000002 (most recent call first):
  File "/home/me/log.py", line 3 in write
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap
"""


def test_in_a_backward_pass_the_thread_of_torch_comes_first() -> None:
    """It runs hooks and recomputation, where there is a GPU."""
    files = [(frame.file, frame.line) for frame in main_thread(OF_TORCH + OF_PYTHON + BACKWARD)]
    main = [("torch/autograd/graph.py", 869), ("train.py", 4)]
    assert files == [("train.py", 8), *main]
    assert [(f.file, f.line) for f in main_thread(OF_PYTHON + BACKWARD)] == main
    other = OF_TORCH + OF_PYTHON + BACKWARD.replace("_engine_run_backward", "step")
    assert [(f.file, f.line) for f in main_thread(other)] == main


def test_what_trains_with_ft_run_is_a_library() -> None:
    file = Path(hook.__file__).parents[1] / "ranks.py"
    (frame,) = main_thread(f'Thread 0x1 (most recent call first):\n  File "{file}", line 1 in f\n')
    assert (frame.file, frame.is_library) == ("ft_run/training/ranks.py", True)
