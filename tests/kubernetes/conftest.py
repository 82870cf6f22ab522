"""Tests on a real cluster: the one of KUBECONFIG, with the image FT_RUN_KUBERNETES_IMAGE.

    FT_RUN_KUBERNETES_IMAGE=registry/ft-run pytest tests/kubernetes

The image is the one of ``examples/container``. The cluster needs three nodes with 2 CPUs, JobSet,
LeaderWorkerSet (without one of them, its tests are skipped), the right to create namespaces, and a
directory that all nodes share. Variables: ``cluster.py``. Times are printed at the end.
"""

from collections.abc import Iterator

import pytest
from ft_run.tests.kubernetes.cluster import Cluster, Job
from ft_run.tests.kubernetes.faults import running
from ft_run.tests.kubernetes.namespaces import namespace


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A namespace of a test's own."""
    with namespace() as found:
        yield found


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest) -> Iterator[Job]:
    """The job of a module, which trains without end: the Indexed Job with its ``CHANGES``."""
    with running(*request.module.CHANGES) as found:
        yield found
