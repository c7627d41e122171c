"""Readers of OSWorld-G and OSWorld-G-Refined (arXiv 2505.13227), as published and in MAI-UI's conversion.

Both have the same 564 items in other words: rectangles, polygons, and instructions that nothing on the screen answers.
They are two benchmarks: a file holds one of them, and they are never pooled.
"""

from __future__ import annotations

import pathlib

from data.benchmarks.entries import BoxForm, Entry, EntryError, annotation_file, read_benchmark
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.evals.benchmark import Benchmark, Box, Item, Polygon, Refusal, Target

_KINDS = {Box: "rectangle", Polygon: "polygon", Refusal: "refusal"}
_DECIMALS = 6  # removes what adding and subtracting leave of annotations with a few decimals


def read_osworld_g(place: pathlib.Path) -> Benchmark:
    """Reads `OSWorld-G.json`: `box_type` bbox (xywh), polygon (x, y of each vertex) or refusal.

    Raises:
      DataError: the file is missing or not JSON.
    """
    return read_benchmark("osworld_g", [annotation_file(place, "OSWorld-G.json")], _original)


def read_osworld_g_refined(place: pathlib.Path) -> Benchmark:
    """Reads `OSWorld-G_refined.json`; as `read_osworld_g`.

    Raises:
      DataError: the file is missing or not JSON.
    """
    return read_benchmark("osworld_g_refined", [annotation_file(place, "OSWorld-G_refined.json")], _original)


def read_osworld_g_mai_ui(place: pathlib.Path) -> Benchmark:
    """Reads `OSWorld-G_sspro_format.json`, MAI-UI's conversion; polygons are repaired (see `repaired`).

    Raises:
      DataError: the file is missing or not JSON.
    """
    return read_benchmark("osworld_g", [annotation_file(place, "OSWorld-G_sspro_format.json")], _converted)


def read_osworld_g_refined_mai_ui(place: pathlib.Path) -> Benchmark:
    """Reads MAI-UI's conversion of the refined instructions, a JSON file with "refine" in its name.

    Raises:
      DataError: the file is missing or not JSON, or several are there.
    """
    return read_benchmark("osworld_g_refined", [annotation_file(place, "*[Rr]efine*.json")], _converted)


def repaired(polygon: Polygon) -> Polygon:
    """A polygon of MAI-UI's conversion with its second vertex where it was annotated.

    The conversion from xywh to xyxy added the first two numbers to the next two in every row, of polygons too.
    """
    (x1, y1), (x2, y2), *others = polygon.vertices
    return Polygon(((x1, y1), (round(x2 - x1, _DECIMALS), round(y2 - y1, _DECIMALS)), *others))


def _original(entry: Entry) -> Item:
    kind = entry.text("box_type")
    target: Target
    if kind == "bbox":
        target = entry.box("box_coordinates", BoxForm.XYWH)
    elif kind == "polygon":
        target = entry.polygon("box_coordinates")
    elif kind == "refusal":
        target = Refusal()
    else:
        raise EntryError("bad_field", f"box_type is {kind!r:.80}, must be bbox, polygon or refusal")
    return _item(entry, target, "image_path", "image_size", "GUI_types")


def _converted(entry: Entry) -> Item:
    numbers = entry.numbers("bbox")
    target: Target
    if numbers == [0, 0, 0, 0]:
        target = Refusal()
    elif len(numbers) == 4:
        target = entry.box("bbox", BoxForm.XYXY)
    else:
        target = repaired(entry.polygon("bbox"))
    return _item(entry, target, "img_filename", "img_size", "ui_type")


def _item(entry: Entry, target: Target, image: str, size: str, elements: str) -> Item:
    # A refusal may have the string "/" in place of a list.
    kinds = entry.fields.get(elements)
    return Item(
        item_id=entry.text("id"),
        instruction=entry.text("instruction"),
        target=target,
        family=DeviceFamily.DESKTOP,
        image=entry.text(image),
        size=entry.size(size),
        facets={
            "target": _KINDS[type(target)],
            "elements": kinds if isinstance(kinds, str) else ", ".join(entry.texts(elements)),
        },
    )
