"""Settings for every test: CPU with 8 virtual devices, a persistent compilation cache, and the conformance data."""

from __future__ import annotations

import os
import pathlib

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]

# Before anything imports jax.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(REPOSITORY / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest  # noqa: E402


@pytest.fixture(scope="session")
def conformance() -> pathlib.Path:
    """The folder with data computed by reference implementations; tests that need it skip where it is absent."""
    folder = pathlib.Path(os.environ.get("GUI_OWL_CONFORMANCE", REPOSITORY.parent / "shared" / "conformance"))
    if not folder.is_dir():
        pytest.skip(f"no conformance data at {folder}; set GUI_OWL_CONFORMANCE to its folder")
    return folder


@pytest.fixture(scope="session")
def golden() -> pathlib.Path:
    """The committed reference fixtures, made by tests/golden/make_golden.py."""
    return pathlib.Path(__file__).parent / "golden"
