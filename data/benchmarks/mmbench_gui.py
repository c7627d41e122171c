"""Reader of MMBench-GUI L2, element grounding (arXiv 2507.19478)."""

from __future__ import annotations

import pathlib

from data.benchmarks.entries import BoxForm, Entry, EntryError, annotation_file, read_benchmark
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.evals.benchmark import Benchmark, Item

# Pages are pointed at by coordinates, which the actions of `DeviceFamily.WEB` (marks) do not have.
_FAMILIES = {
    "android": DeviceFamily.MOBILE,
    "ios": DeviceFamily.MOBILE,
    "linux": DeviceFamily.DESKTOP,
    "mac": DeviceFamily.DESKTOP,
    "web": DeviceFamily.DESKTOP,
    "windows": DeviceFamily.DESKTOP,
}
_PLATFORMS = {f"os_{name}": name for name in _FAMILIES} | {name: name for name in _FAMILIES}
_LEVELS = ("basic", "advanced")


def read_mmbench_gui_l2(place: pathlib.Path) -> Benchmark:
    """Reads `L2_annotations.json`. Boxes are shares of the image (xyxy); images lie in a folder a platform.

    The published scorer divides a box with a value above 1 by the image's size, which cannot tell a box in pixels from
    shares at (1, 1); here such a box is a fatal problem. The facet `level` is basic or advanced.

    Raises:
      DataError: the file is missing or not JSON.
    """
    return read_benchmark("mmbench_gui_l2", [annotation_file(place, "L2_annotations.json")], _item)


def _item(entry: Entry) -> Item:
    folder, level = entry.text("platform"), entry.text("grounding_type")
    if folder not in _PLATFORMS:
        raise EntryError("bad_field", f"platform is {folder!r:.80}, must be one of {', '.join(_FAMILIES)}")
    if level not in _LEVELS:
        raise EntryError("bad_field", f"grounding_type is {level!r:.80}, must be one of {', '.join(_LEVELS)}")
    size = entry.size("image_size")
    return Item(
        item_id=f"{entry.path.stem}_{entry.index}",
        instruction=entry.text("instruction"),
        target=entry.box("bbox", BoxForm.NORMALISED, size),
        family=_FAMILIES[_PLATFORMS[folder]],
        image=f"{folder}/{entry.text('image_path')}",
        size=size,
        facets={
            "platform": _PLATFORMS[folder],
            "level": level,
            **entry.facets(ui_type="data_type", application="app_name"),
        },
    )
