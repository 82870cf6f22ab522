"""What an agent does when its own host says that the job is over."""

from collections.abc import Callable
from typing import Any, cast

from ft_run import exit_codes
from ft_run.launcher.agent.hosting import unheard
from ft_run.launcher.agent.lifecycle import JobOver
from ft_run.tests.launcher.preflight.test_session import OVER, Node, node  # noqa: F401 - a fixture


def test_it_ends_with_the_status_of_the_job(
    node: Callable[..., None],  # noqa: F811 - the fixture
) -> None:
    async def test(here: Node) -> None:
        await here.hear(cast(Any, JobOver(unheard(exit_codes.WORKERS_FAILED))))
        assert here.status() == exit_codes.WORKERS_FAILED

    node(test, only=False)


def test_what_the_master_has_said_counts(
    node: Callable[..., None],  # noqa: F811 - the fixture
) -> None:
    async def test(here: Node) -> None:
        await here.hear(OVER, cast(Any, JobOver(unheard(exit_codes.WORKERS_FAILED))))
        assert here.agent.verdict == OVER
        assert here.status() == exit_codes.SUCCESS

    node(test, only=False)
