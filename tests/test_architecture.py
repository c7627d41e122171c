"""The shape of the code base, read from the code itself: who imports whom, what is documented, how long files are."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import statistics
import subprocess
import sys

import pytest
from ml_collections import ConfigDict

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ("gui_owl_jax", "configs", "data", "envs", "launch")
JAX = ("jax", "jaxlib", "flax", "optax", "orbax", "chex")

# Which of the project's parts a part may import, besides itself and the empty package gui_owl_jax.
LIBRARY = ("agent", "ops", "models", "sharding", "rl", "hf", "training", "rollout", "evals")
FLOORS = {
    "agent": (),
    "ops": ("agent",),
    "models": ("agent", "ops"),
    "sharding": ("agent", "ops", "models"),
    "rl": ("agent", "ops", "models", "sharding"),
    "hf": ("agent", "ops", "models", "sharding"),
    "training": ("agent", "ops", "models", "sharding", "rl"),
    "rollout": ("agent", "ops", "models", "sharding", "rl", "hf", "training"),
    "evals": LIBRARY,
    "envs": ("agent",),
    "data": LIBRARY,
    "configs": (),
    "launch": ("configs", "data", "envs", *LIBRARY),
}


def module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part(module: str) -> str:
    """The key of FLOORS for a module: gui_owl_jax.rl.objective -> rl, launch.act -> launch."""
    names = module.split(".")
    return names[1] if names[0] == "gui_owl_jax" and len(names) > 1 else names[0]


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Every module of the packages, parsed."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {module_name(path): ast.parse(path.read_text(), str(path)) for path in files}


def imports(module: str) -> set[str]:
    """Full names of all modules that a module imports, anywhere in its text."""
    found = set()
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute here"
            # b of `from a import b` is a module or a name in one.
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def own(names: set[str]) -> set[str]:
    """Those of the project, but for the empty package itself."""
    return {name for name in names if name.split(".")[0] in PACKAGES} - {"gui_owl_jax"}


def test_every_module_has_a_floor():
    assert {part(module) for module in trees()} - {"gui_owl_jax"} == set(FLOORS)


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_go_downwards(floor):
    allowed = {floor, *FLOORS[floor]}
    modules = [module for module in trees() if part(module) == floor]
    wrong = [f"{m} imports {name}" for m in modules for name in own(imports(m)) if part(name) not in allowed]
    assert modules and not wrong, "\n".join(wrong)


def test_modules_import_in_no_circle():
    graph = {module: (imports(module) & set(trees())) - {module} for module in trees()}
    done: set[str] = set()
    while ready := {module for module, needs in graph.items() if needs <= done} - done:
        done |= ready
    stuck = {module: sorted(needs - done) for module, needs in graph.items() if module not in done}
    assert not stuck


def test_agent_and_environments_run_without_jax():
    """By their text, and by what is loaded once all of them are imported."""
    modules = [module for module in trees() if part(module) in ("agent", "envs")]
    wrong = [f"{m} imports {name}" for m in modules for name in imports(m) if name.split(".")[0] in JAX]
    assert not wrong
    code = f"import importlib, sys\nfor m in {modules}: importlib.import_module(m)\nsys.exit(str('jax' in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stderr.strip().splitlines()[-1] == "False", run.stderr


def test_the_library_defines_no_flags():
    modules = [module for module in trees() if module.startswith(("gui_owl_jax", "envs", "configs"))]
    flags = {"absl.flags", "absl.app", "argparse"}
    wrong = [f"{module} imports {name}" for module in modules for name in imports(module) & flags]
    assert not wrong


def public_definitions(module: str):
    """(qualified name, node) of a module, its public classes and functions, and their public methods."""
    yield module, trees()[module]
    todo = [(module, node) for node in trees()[module].body]
    while todo:
        prefix, node = todo.pop()
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        yield f"{prefix}.{node.name}", node
        if isinstance(node, ast.ClassDef):
            todo += [(f"{prefix}.{node.name}", inner) for inner in node.body]


def test_every_public_name_has_a_docstring(record_property):
    names = [definition for module in trees() for definition in public_definitions(module)]
    bare = [name for name, node in names if not ast.get_docstring(node)]
    record_property("public_names", len(names))
    assert len(names) > 100
    assert not bare, f"{len(bare)} of {len(names)} public names have no docstring: {bare}"


def test_files_are_short(record_property):
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for top in (*PACKAGES, "tests")
        for path in (ROOT / top).rglob("*.py")
    }
    assert not {name: lines for name, lines in lengths.items() if lines > 1000}
    source = [n for name, n in lengths.items() if not name.startswith("tests") and not name.endswith("__init__.py")]
    record_property("median_lines", statistics.median(source))
    assert statistics.median(source) <= 200
    assert sum(lines > 500 for lines in source) <= len(source) / 10, "nine files in ten stay under 500 lines"


def config_files() -> list[pathlib.Path]:
    return sorted(path for path in (ROOT / "configs").rglob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", config_files(), ids=lambda path: path.stem)
def test_a_config_states_its_experiment(path):
    tree = trees()[module_name(path)]
    assert "Command:" in (ast.get_docstring(tree) or ""), f"{path.name}: the docstring gives the command"
    config = importlib.import_module(module_name(path)).get_config()
    assert isinstance(config, ConfigDict)
    assert config.to_json(), "a run stores its config as JSON"
