"""Reader of UI-Vision, element grounding (arXiv 2503.15661)."""

from __future__ import annotations

import pathlib

from data.benchmarks.entries import BoxForm, Entry, annotation_files, read_benchmark
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.benchmark import Benchmark, Box, Item

_PREFIX = "element_grounding_"
_SETTINGS = ("basic", "functional", "spatial")


def read_ui_vision(place: pathlib.Path) -> Benchmark:
    """Reads `element_grounding_{basic,functional,spatial}.json`, the facet `group`. Boxes are xyxy in pixels.

    Their `platform` names the application and is the facet `application`. Corners may come in either order, as in the
    published scorer. An id is the file's stem and the position in it.

    Raises:
      DataError: no file is there, or one is not JSON.
    """
    return read_benchmark("ui_vision", annotation_files(place, [f"{_PREFIX}{name}.json" for name in _SETTINGS]), _item)


def _item(entry: Entry) -> Item:
    setting = entry.path.stem.removeprefix(_PREFIX)
    if setting not in _SETTINGS:
        raise DataError(f"{entry.path}: the setting is told by the name: {_PREFIX}{{{','.join(_SETTINGS)}}}.json")
    box = entry.box("bbox", BoxForm.XYXY)
    (left, right), (top, bottom) = sorted((box.left, box.right)), sorted((box.top, box.bottom))
    return Item(
        item_id=f"{entry.path.stem}_{entry.index}",
        instruction=entry.text("prompt_to_evaluate"),
        target=Box(left, top, right, bottom),
        family=DeviceFamily.DESKTOP,
        image=entry.text("image_path"),
        size=entry.size("image_size"),
        facets={"group": setting, **entry.facets(application="platform", ui_type="element_type")},
    )
