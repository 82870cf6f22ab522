"""Namespaces of the cluster, with what the manifests need; pods that run a script."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ft_run.tests.harness.kubernetes.manifests import Document
from ft_run.tests.kubernetes.cluster import IMAGE, SHARED, Cluster

TOKEN = "9c41d07e5b2f863ae17d5a0b94c2f368"


@contextmanager
def namespace() -> Iterator[Cluster]:
    """Make a namespace with the token and the claim; delete it at the end."""
    name = f"ft-run-{uuid.uuid4().hex[:8]}"
    cluster = Cluster(name)
    with ExitStack() as end:
        end.callback(cluster.kubectl, "delete", "pv", name, "--wait=false", check=False)
        end.callback(cluster.kubectl, "delete", "namespace", name, "--wait=false", check=False)
        cluster.kubectl("create", "namespace", name)
        cluster.kubectl(
            "create", "secret", "generic", "digits-token", f"--from-literal=token={TOKEN}"
        )
        cluster.apply(*_storage(name))
        cluster.run(as_root("prepare", "chown 1000:1000 /checkpoints", shared=True))
        end.callback(cluster.run, as_root("clean", "rm -rf /checkpoints/*", shared=True))
        # In a namespace that is being deleted, the controller would wait for a new pod forever.
        end.callback(cluster.kubectl, "delete", "job", "--all", check=False)
        yield cluster


def _storage(name: str) -> list[Document]:
    size = {"storage": "1Gi"}
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    path = {"path": f"{SHARED}/{name}", "type": "DirectoryOrCreate"}
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    return [
        {**volume, "spec": {**spec, "capacity": size, "hostPath": path}},
        {
            **claim,
            "metadata": {"name": "checkpoints"},
            "spec": {**spec, "volumeName": name, "resources": {"requests": size}},
        },
    ]


def as_root(name: str, script: str, *, shared: bool = False, **spec: object) -> Document:
    """Return a pod that runs a script of the shell as root.

    Args:
        name: of the pod.
        script: the script.
        shared: the claim is at ``/checkpoints``.
        spec: other fields of the pod.
    """
    container: Document = {"name": "sh", "image": IMAGE, "command": ["sh", "-ec", script]}
    container["securityContext"] = {"runAsUser": 0, "privileged": True}
    pod: Document = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, **spec}
    if shared:
        container["volumeMounts"] = [{"name": "shared", "mountPath": "/checkpoints"}]
        claim = {"claimName": "checkpoints"}
        pod["volumes"] = [{"name": "shared", "persistentVolumeClaim": claim}]
    pod["containers"] = [container]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod}
