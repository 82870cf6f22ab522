"""Starts, finds, names and ends processes on Linux. Independent of jobs and rounds."""

import os.path
from typing import Final

RUN_MODULE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_module.py")
"""The script that runs a module of the launcher in a separate process, with any interpreter."""
