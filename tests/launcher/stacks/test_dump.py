"""What is read of a dump: frames of the main thread, without those that watching has put there."""

from ft_run.launcher.stacks.dump import main_thread
from ft_run.training import hook

DUMP = f"""Current thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 725 in __next__
  File "{hook.__file__}", line 180 in next_batch
  File "/home/me/train.py", line 12 in main
"""


def test_the_hook_around_a_data_loader_is_not_taken_for_code_of_the_user() -> None:
    frames = main_thread(DUMP)
    assert [(frame.file, frame.line, frame.is_library) for frame in frames] == [
        ("selectors.py", 415, True),
        ("torch/utils/data/dataloader.py", 725, True),
        ("train.py", 12, False),
    ]
