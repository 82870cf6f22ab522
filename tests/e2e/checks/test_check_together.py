"""``ft-run check`` of several nodes: the ladder and nothing after it."""

import pytest


@pytest.mark.long
def test_two_nodes_with_a_token_are_checked_and_one_of_them_prints_the_table(ft, free_port):
    token = ft.folder / "job.token"
    assert ft.run("token", token).process.returncode == 0
    meet = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", "check")
    options = ("--check-timeout", 120, "--token-file", token)
    nodes = [ft.start("check", *meet, *options, env={"OMP_NUM_THREADS": "1"}) for _ in range(2)]
    for node in nodes:
        node.process.wait(150)
    assert [node.wait() for node in nodes] == [0, 0]
    (table,) = [node.stdout for node in nodes if node.stdout]
    assert "BANDWIDTH" in table
    assert "2 of 2 nodes pass" in table
    assert all("checks finished" in node.stderr for node in nodes)
