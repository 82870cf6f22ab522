"""``ft-run check`` of several nodes: the ladder and nothing after it."""

import json

import pytest

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def together(ft, free_port):
    """Check two nodes; return the commands by the number of their node, ended."""

    def run(*flags, fault=""):
        meet = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", "check")
        env = {"FT_RUN_CHECK_FAULT": fault, "OMP_NUM_THREADS": "1"}
        commands = [
            ft.start("check", *meet, "--check-timeout", 120, *flags, env=env) for _ in range(2)
        ]
        for command in commands:
            command.process.wait(150)
        return [(command.wait(), command) for command in commands]

    return run


@pytest.mark.long
def test_two_nodes_with_a_token_are_checked_and_one_of_them_prints_the_table(ft, together):
    token = ft.folder / "job.token"
    assert ft.run("token", token).process.returncode == 0
    first, second = together("--token-file", token)
    assert (first[0], second[0]) == (0, 0)
    tables = [command.stdout for _, command in (first, second) if command.stdout]
    assert len(tables) == 1
    assert "BANDWIDTH" in tables[0]
    assert "2 of 2 nodes pass" in tables[0]
    assert all("checks finished" in command.stderr for _, command in (first, second))


@pytest.mark.slow
def test_two_nodes_that_miss_a_minimum_together_pass_with_a_warning(together):
    # Processors of a busy machine differ by more than nodes do.
    same = ("--straggler-threshold", 1000)
    first, second = together("--max-latency-us", 0.001, "--strict", "--json", *same)
    assert (first[0], second[0]) == (10, 10)
    (report,) = [json.loads(command.stdout) for _, command in (first, second) if command.stdout]
    assert [node["verdict"] for node in report["nodes"]] == ["passed", "passed"]
    for node in report["nodes"]:
        assert any(
            "inter-node latency to miss its minimum or maximum" in remark
            for remark in node["remarks"]
        )


@pytest.mark.slow
def test_a_wrong_value_between_two_is_worth_a_retry_and_the_report_is_json(together):
    first, second = together("--json", fault="wrong-value@local-rank=0,phase=pair")
    assert (first[0], second[0]) == (20, 20)
    (report,) = [json.loads(command.stdout) for _, command in (first, second) if command.stdout]
    assert {node["verdict"] for node in report["nodes"]} == {"undecided"}
    assert all("the link between" in command.stderr for _, command in (first, second))
