"""Settings for every test: CPU with 8 virtual devices, a persistent compilation cache, and the conformance data."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
from collections.abc import Iterator

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


@pytest.fixture
def nothing_stored() -> Iterator[None]:
    """Keeps what a test compiles out of the persistent cache.

    Programs for several CPU devices can deadlock when they come from it (jax 0.10.2): a device then no longer starts
    its collective operations in the order of the others.
    """
    import jax

    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 1e9)
    yield
    jax.config.update(name, before)


@pytest.fixture(scope="session", autouse=True)
def torchvision_that_imports(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where tests compare with transformers, lets torchvision import even if it was built for another torch.

    A torch for CPUs comes from an index of its own; beside it the torchvision of the usual index lacks its compiled
    operators, and importing transformers fails. Resizing is written in torch alone: the operators are missed only by
    functions that register shapes for two of them at import, so that their signatures are enough.
    """
    wanted = any(item.get_closest_marker("parity") for item in request.session.items)
    if not wanted or any(importlib.util.find_spec(name) is None for name in ("torch", "torchvision")):
        yield
        return
    signatures = None
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        signatures = importlib.import_module("torch").library.Library("torchvision", "FRAGMENT")
        signatures.define("nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
        signatures.define("qnms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")
    yield
    del signatures  # the definitions live as long as their library
