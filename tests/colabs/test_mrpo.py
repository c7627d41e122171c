"""colabs/mrpo.ipynb runs top to bottom in a fresh kernel, its plots show data, and its figures are the right ones."""

from __future__ import annotations

import base64
import io
import json
import os
import pathlib

import nbclient
import nbformat
import numpy as np
import pytest
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "colabs" / "mrpo.ipynb"
FIGURES = {"collapse": 1, "pool": 1, "shares": 2, "bias": 2, "compare": 4}  # id of the cell -> number of axes
TRAINING = "train-text"  # the cell where section 3 begins

# Run after the last cell, in the notebook's own kernel: what the plots and variables hold.
PROBE = """
def _points(axis):
    lines = [line.get_xydata() for line in axis.lines]
    bars = [(patch.get_x(), patch.get_height()) for patch in axis.patches]
    return sum(int(np.isfinite(np.asarray(xy, float)).all(axis=1).sum()) for xy in [*lines, bars] if len(xy))

print(json.dumps({
    "axes": {
        name.removesuffix("_figure"): [
            {"points": _points(axis), "title": axis.get_title(), "x": axis.get_xlabel()} for axis in figure.axes
        ]
        for name, figure in list(globals().items()) if name.endswith("_figure")
    },
    "pool": pool_name,
    "rollouts": int(trials.sum()),
    "tasks": [int(np.sum(successes == 0)), int(np.sum(successes == trials)), int(mixed.sum())],
    "uniform": measured[Case.UNIFORM].tolist(),
    "selected": (measured[Case.UNIFORM] + measured[Case.SWAP1]).tolist(),
    "mixed": float(mixed.mean()),
    "bias": bias_on_hard,
    "logged": globals().get("logged"),
}, default=float))
"""


def execute(notebook: nbformat.NotebookNode, conformance: str | None = None) -> dict:
    """Runs the cells in place, as a reader would on an ordinary CPU; returns what the probe found."""
    notebook.cells.append(nbformat.v4.new_code_cell(PROBE, id="probe"))
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    if conformance is not None:
        env["GUI_OWL_CONFORMANCE"] = conformance
    resources = {"metadata": {"path": str(ROOT)}}
    client = nbclient.NotebookClient(notebook, timeout=1200, kernel_name="python3", resources=resources)
    client.execute(env=env)  # raises at the first cell that fails
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    probe = notebook.cells.pop()
    return json.loads("".join(output.text for output in probe.outputs if output.get("name") == "stdout"))


def pictures(notebook: nbformat.NotebookNode) -> dict[str, np.ndarray]:
    """The one picture uint8 [H, W, 3] of every cell that drew, by the id of the cell."""
    found = {}
    for cell in notebook.cells:
        pngs = [o.data["image/png"] for o in cell.get("outputs", ()) if "image/png" in o.get("data", {})]
        assert len(pngs) <= 1, cell.id
        for png in pngs:
            found[cell.id] = np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"))
    return found


@pytest.fixture(scope="module")
def whole() -> tuple[nbformat.NotebookNode, dict]:
    """The notebook after a run of all cells, and what was found in it."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    return notebook, execute(notebook)


def test_is_committed_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)


def test_plots_are_not_empty(whole):
    notebook, found = whole
    drawn = pictures(notebook)
    assert list(drawn) == list(FIGURES)
    for name, picture in drawn.items():
        inked = (picture != 255).any(axis=2)
        coloured = np.ptp(picture.astype(int), axis=2) > 60  # curves and bars; axes and text are grey
        assert min(picture.shape[:2]) > 200, name
        assert inked.mean() > 0.02 and coloured.mean() > 0.002, name
    assert {name: len(axes) for name, axes in found["axes"].items()} == FIGURES
    for name, axes in found["axes"].items():
        assert all(axis["points"] >= 4 and axis["title"] for axis in axes), (name, axes)


def test_selection_repairs_every_mixed_pool_and_weights_remove_the_bias(whole):
    _, found = whole
    assert found["selected"] == pytest.approx([found["mixed"]] * 4, abs=1e-9)
    assert all(uniform <= selected for uniform, selected in zip(found["uniform"], found["selected"]))
    assert found["uniform"][0] < found["mixed"] - 0.1
    (biased, half), (unbiased, other_half) = found["bias"]["weight 1"], found["bias"]["inclusion weights"]
    assert biased > 20 * half
    assert abs(unbiased) < 2 * other_half  # four standard errors


def test_figures_of_the_real_pool(whole, conformance):
    """The shares of 11,943 recorded rollouts; the uniform ones from draws, the others exact."""
    _, found = whole
    assert found["pool"] == "OSWorld rollouts"
    assert (found["rollouts"], found["tasks"]) == (11943, [173, 32, 164])
    assert found["uniform"] == pytest.approx([0.243, 0.328, 0.393, 0.444], abs=0.005)
    assert [round(share, 3) for share in found["selected"]] == [0.444] * 4


def test_training_runs_differ_in_the_component_that_was_switched_off(whole):
    _, found = whole
    full, off = found["logged"].values()
    assert [line["step"] for line in full] == [line["step"] for line in off] == list(range(1, len(full) + 1))
    assert len(full) >= 3
    # The first update sees the same rollouts; whatever group discard keeps, swap1 keeps too.
    assert full[0]["success"] == off[0]["success"]
    assert full[0]["informative_share"] >= off[0]["informative_share"]
    assert all(line["swap_share"] == 0 for line in off)
    learned = [line for line in full if line["informative_share"] > 0]
    assert learned and all(line["grad_norm"] > 0 and line["entropy"] > 0 for line in learned)
    assert max(line["success"] for line in full) > 0
    assert all(np.isfinite(line["loss"]) for line in (*full, *off))


def test_without_the_recorded_pool_it_says_so_and_shows_synthetic_ones(tmp_path):
    """Sections 1 and 2."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    ids = [cell.id for cell in notebook.cells]
    notebook.cells = notebook.cells[: ids.index(TRAINING)]
    found = execute(notebook, conformance=str(tmp_path))
    assert "SYNTHETIC" in found["pool"]
    said = "".join(o.text for cell in notebook.cells for o in cell.get("outputs", ()) if o.get("name") == "stdout")
    assert "is not here" in said and "synthetic" in said
    titles = [axis["title"] for name in ("pool", "shares", "bias") for axis in found["axes"][name]]
    assert len(titles) == 5 and all("SYNTHETIC" in title for title in titles)
    assert found["selected"] == pytest.approx([found["mixed"]] * 4, abs=1e-9)
