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


def test_the_lines_of_the_users_own_code_are_told_and_no_others(tmp_path: Path) -> None:
    for name in ("train.py", "site-packages/lib.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("  first()\n")
    lines = [f'  File "{tmp_path / n}", line 1 in f' for n in ("site-packages/lib.py", "train.py")]
    frames = main_thread("\n".join(["Thread 0x1 (most recent call first):", *lines]))
    assert [(f.file, f.source) for f in frames] == [("lib.py", ""), ("train.py", "first()")]


def test_the_hook_around_a_data_loader_is_not_taken_for_code_of_the_user() -> None:
    frames = main_thread(DUMP)
    assert [(frame.file, frame.line, frame.is_library) for frame in frames] == [
        ("selectors.py", 415, True),
        ("torch/utils/data/dataloader.py", 725, True),
        ("train.py", 12, False),
    ]
