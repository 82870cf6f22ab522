"""Completion in bash, as the README sets it up."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.e2e.conftest import FT_RUN

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

BASH = """
eval "$(%s)"
complete -p ft-run
COMP_WORDS=(ft-run --standalone --succ) COMP_CWORD=2
_ft_run_completion ft-run
echo "offered: ${COMPREPLY[*]}"
"""


@pytest.mark.parametrize(
    "script", ["ft-run --print-completion bash", "_FT_RUN_COMPLETE=bash_source ft-run"]
)
def test_bash_is_offered_a_flag(script: str, ft: "Launcher") -> None:
    path = f"{Path(FT_RUN).parent}:/usr/bin:/bin"
    shell = ft.run("-c", BASH % script, program=("bash", "--norc"), env={"PATH": path})
    assert shell.process.returncode == 0
    assert "-F _ft_run_completion ft-run" in shell.stdout
    assert "offered: --success-policy\n" in shell.stdout
