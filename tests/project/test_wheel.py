"""The wheel: everything that is needed at run time is in it, and it works where nothing else is."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED = {
    "py.typed",
    "protos/rendezvous.proto",
    "protos/rendezvous_pb2.py",
    "protos/rendezvous_pb2.pyi",
    "training/worker/starter/sitecustomize.py",
    "launcher/processes/store_process.py",
    "__main__.py",
}


def python_files() -> set[str]:
    """Return the modules of the package in the repository."""
    tops = ("checks", "launcher", "protos", "rendezvous", "training")
    found = {path for top in tops for path in (ROOT / top).rglob("*.py")}
    return {str(path.relative_to(ROOT)) for path in {*found, *ROOT.glob("*.py")}}


def test_all_that_is_needed_is_packaged() -> None:
    """What the build would copy, without a build: it takes a second."""
    program = (
        "from setuptools.dist import Distribution\n"
        "dist = Distribution({'script_name': 'setup.py'})\n"
        "dist.parse_config_files()\n"
        "build = dist.get_command_obj('build_py')\n"
        "build.build_lib = 'lib'\n"
        "build.ensure_finalized()\n"
        "print(*build.get_outputs(include_bytecode=False), sep='\\n')\n"
        "for folder, files in dist.data_files: print('data', folder, *files)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    packaged = {line.removeprefix("lib/ft_run/") for line in lines if line.startswith("lib/")}
    assert packaged >= python_files() | NEEDED
    assert not any(name.startswith(("tests/", "docs/", "benchmarks/")) for name in packaged)
    assert "data share/man/man1 docs/ft-run.1" in lines


@pytest.mark.slow
def test_it_runs_in_a_bare_environment(tmp_path: Path) -> None:
    """Of this environment only the packages that it needs are lent, not ft-run itself."""

    def run(*command: object, **more: str) -> str:
        done = subprocess.run(
            [*map(str, command)], cwd=tmp_path, env={**os.environ, **more}, capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = {name.removeprefix("ft_run/") for name in zipfile.ZipFile(wheel).namelist()}
    assert names >= python_files() | NEEDED
    run(sys.executable, "-m", "venv", "bare")
    bare = tmp_path / "bare"
    run(bare / "bin" / "pip", "install", "-q", "--no-deps", wheel)
    (site,) = bare.glob("lib/python3*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(bare / "bin" / "python", "-c", "import ft_run; print(ft_run.__file__)")
    assert where.startswith(str(site))
    run(bare / "bin" / "python", "-m", "compileall", "-q", site / "ft_run")
    (tmp_path / "work.py").write_text(
        "import os\nos.write(1, ('rank ' + os.environ['RANK'] + '\\n').encode())\n"
    )
    for option in ("--watch-workers", "--preload=json"):
        printed = run(bare / "bin" / "ft-run", "--nproc-per-node=2", option, "work.py")
        assert sorted(printed.split()) == ["0", "1", "rank", "rank"]
    run(bare / "bin" / "python", "-P", "-m", "ft_run", "token", "a.token")
    manual = (bare / "share" / "man" / "man1" / "ft-run.1").read_text()
    assert manual == (ROOT / "docs" / "ft-run.1").read_text()
