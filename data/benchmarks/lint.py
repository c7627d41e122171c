"""What looks wrong about the items of a benchmark: labels against the declared size, images against the annotations."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator

from PIL import Image

from gui_owl_jax.evals.benchmark import ActionLabel, Box, Item, Polygon, Problem
from gui_owl_jax.evals.targets import RESOLUTION, area, bounds

MOST = 0.5  # a label over more than this share of its image covers most of it


def lint(items: Iterable[Item], images: str | pathlib.Path | None = None) -> list[Problem]:
    """Findings about items, by the order of the items.

    Without images: `empty_box` (no width or no height, or edges the wrong way round), `box_outside_image`,
    `covers_image` (more than half of it), `duplicate_vertex`. With a folder of images also `missing_image`,
    `unreadable_image` and `size_differs`; every image is opened once, only its header is read.

    Args:
      items: as read; boxes of actions are looked at too.
      images: the folder that `Item.image` is relative to.

    Returns:
      Problems that are not fatal, `where` is the item's id.
    """
    headers: dict[str, tuple[int, int] | Problem] = {}
    findings: list[Problem] = []
    for item in items:
        for name in item.images if images is not None else ():
            if name not in headers:
                headers[name] = _header(pathlib.Path(str(images)) / name, item.item_id)
        header = headers[item.image] if images is not None and item.image else item.size or (0, 0)
        findings += [Problem(item.item_id, kind, detail) for kind, detail in _item(item, header)]
        others = [headers[name] for name in item.more_images if name in headers]
        findings += [Problem(item.item_id, other.kind, other.detail) for other in others if isinstance(other, Problem)]
    return findings


def _item(item: Item, header: tuple[int, int] | Problem) -> Iterator[tuple[str, str]]:
    size = item.size
    if isinstance(header, Problem):
        yield header.kind, header.detail
    elif size is None:
        size = header if header != (0, 0) else None
    elif header != size:
        yield "size_differs", f"{item.image} has {header[0]}x{header[1]} pixels, declared are {size[0]}x{size[1]}"
    for label in _labels(item):
        yield from _label(label, size)


def _labels(item: Item) -> Iterator[Box | Polygon]:
    if isinstance(item.target, Box | Polygon):
        yield item.target
    elif isinstance(item.target, ActionLabel):
        yield from item.target.boxes


def _label(label: Box | Polygon, size: tuple[int, int] | None) -> Iterator[tuple[str, str]]:
    if isinstance(label, Polygon) and len(set(label.vertices)) < len(label.vertices):
        yield "duplicate_vertex", f"{len(label.vertices) - len(set(label.vertices))} of its vertices are there already"
    if area(label) <= RESOLUTION:
        yield "empty_box", f"{label} has no area"
    if size is None:
        return
    box = bounds(label)
    outside = max(-box.left, -box.top, box.right - size[0], box.bottom - size[1])
    if outside > RESOLUTION:
        yield "box_outside_image", f"{box} reaches {outside:.6g} pixels beyond an image of {size[0]}x{size[1]}"
    if area(label) > MOST * size[0] * size[1]:
        yield "covers_image", f"{box} covers {area(label) / (size[0] * size[1]):.0%} of the image"


def _header(path: pathlib.Path, where: str) -> tuple[int, int] | Problem:
    if not path.is_file():
        return Problem(where, "missing_image", f"{path} is not there")
    try:
        with Image.open(path) as image:
            return image.size
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        return Problem(where, "unreadable_image", f"{path}: {error}")
