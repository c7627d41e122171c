"""Lint and types: findings are failures."""

from __future__ import annotations

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def run(*command: str) -> None:
    result = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stdout}{result.stderr}"


def test_ruff_finds_nothing():
    run("ruff", "check", "gui_owl_jax", "configs", "data", "envs", "launch", "tests", "setup.py")


def test_mypy_finds_nothing():
    """Packages and options are in pyproject.toml."""
    run("mypy")
