"""Block 7: the full checks."""

import pytest
from ft_run.tests.gpu.machine import Tell, five_checks_agree

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def test_five_full_checks_agree(record_property: Tell) -> None:
    five_checks_agree("full", record_property)
