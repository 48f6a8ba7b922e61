"""The built wheel, installed elsewhere on the disk: it holds all packages and works without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("aicpnode", "consensus", "kernels")
DEADLINE_S = 300


def run(*command: str | Path, cwd: Path) -> str:
    environment = {**os.environ, "XDG_STATE_HOME": str(cwd / "state"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the wheel, and the dependencies of this one but not its checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    # Built from a copy: setuptools leaves a build folder behind, whose old files would get into the next wheel.
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source, cwd=folder)
    (wheel,) = folder.glob("aicp_node-*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    # A path file read from another path file's folder is not followed, so the editable checkout is not seen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=folder)
    return folder / "env" / "bin"


def test_wheel_brings_all_packages(installed: Path, tmp_path: Path) -> None:
    program = (
        "import aicpnode, consensus, kernels; print(*(m.__file__ for m in (aicpnode, consensus, kernels)), sep='\\n')"
    )
    files = run(installed / "python", "-c", program, cwd=tmp_path).splitlines()
    assert len(files) == 3
    assert all(Path(file).is_relative_to(installed.parent) for file in files)
    built = {path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    site = Path(files[0]).parent.parent
    assert not [path for path in built if not (site / path).exists()]


def test_wheel_runs_help_and_a_demo(installed: Path, tmp_path: Path) -> None:
    assert "demo" in run(installed / "aicp-node", "--help", cwd=tmp_path)
    (tmp_path / "text").write_bytes(b"def f(x):\n    return x + 1\n\n\n" * 8000)
    options = ("--nodes", "1", "--rounds", "1", "--dir", "d", "--data", "text")
    assert "EQUAL" in run(installed / "aicp-node", "demo", *options, cwd=tmp_path)
