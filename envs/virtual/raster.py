"""The raster renderer: draws a widget tree into an array, in the process.

A renderer is any callable `(tree, labels, cursor, scale) -> uint8 [H, W, 3]`; another one (HTML, say) can be handed to
the world instead. Widgets of equal looks are painted once and copied from then on.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from envs.virtual.font import text_mask
from envs.virtual.widgets import CELL, Kind, Widget, leaves

TEXT_X, TEXT_Y = 8, 12  # where text starts inside a cell; the column to its left holds an icon or the mark

_Colour = tuple[int, int, int]


class _Style(NamedTuple):
    fill: _Colour
    ink: _Colour
    border: _Colour
    icon: str = ""
    icon_on: str = ""
    gap: int = 1  # pixels of page colour to its left and above it


_PAGE: _Colour = (236, 240, 245)
_DARK: _Colour = (24, 30, 42)
_WHITE: _Colour = (255, 255, 255)
_GREY: _Colour = (176, 184, 196)
_ICON: _Colour = (96, 110, 136)
_BLUE: _Colour = (28, 100, 216)
_PALE: _Colour = (208, 228, 255)
_GREEN: _Colour = (168, 232, 176)
_YELLOW: _Colour = (255, 224, 136)

_STYLES = {
    Kind.BAR: _Style((44, 56, 82), _WHITE, (44, 56, 82), gap=0),
    Kind.LABEL: _Style(_PAGE, (70, 80, 98), _PAGE, gap=0),
    Kind.TAB: _Style((206, 213, 224), _DARK, _GREY, gap=0),
    Kind.TILE: _Style(_WHITE, _DARK, _GREY, "person", "person"),
    Kind.ROW: _Style(_WHITE, _DARK, _GREY, gap=0),
    Kind.SWITCH: _Style(_WHITE, _DARK, _GREY, "circle", "disc"),
    Kind.OPTION: _Style(_WHITE, _DARK, _GREY, "circle", "disc", gap=0),
    Kind.BUTTON: _Style(_BLUE, _WHITE, (12, 66, 160)),
    Kind.TIMER: _Style((255, 244, 214), _DARK, (196, 160, 80), "clock"),
    Kind.SCROLLBAR: _Style((110, 122, 142), _DARK, (110, 122, 142), gap=0),
    Kind.CHIP: _Style(_PALE, _DARK, _BLUE),
    Kind.FIELD: _Style(_WHITE, _DARK, (90, 100, 120)),
    Kind.BUBBLE: _Style((222, 226, 233), _DARK, (222, 226, 233), gap=2),
    Kind.FILE: _Style(_WHITE, _DARK, _GREY, "file", "check"),
    Kind.FOLDER: _Style(_YELLOW, _DARK, (200, 160, 50), "folder", "check"),
    Kind.MENU: _Style((214, 220, 230), _DARK, _GREY, gap=0),
    Kind.ENTRY: _Style((250, 250, 252), _DARK, _GREY, gap=0),
    Kind.CELL: _Style(_WHITE, _DARK, _GREY, gap=0),
    Kind.LINK: _Style(_WHITE, (20, 60, 150), _GREY),
    Kind.SELECT: _Style((243, 236, 255), _DARK, (130, 100, 190)),
}

# Fill of a widget that is on, where it differs.
_FILL_ON = {
    Kind.TAB: _WHITE,
    Kind.SWITCH: _GREEN,
    Kind.OPTION: _PALE,
    Kind.BUTTON: (20, 120, 60),
    Kind.BUBBLE: _GREEN,
    Kind.FILE: _PALE,
    Kind.FOLDER: _PALE,
    Kind.MENU: _PALE,
    Kind.CELL: (255, 222, 200),
}

# Up to 6 x 8 pixels each.
_ICONS = {
    "person": ".###. .###. .###. ..#.. .###. ##### #####",
    "circle": "..... .###. #...# #...# #...# .###.",
    "disc": "..... .###. ##### ##### ##### .###.",
    "file": "###.. #.##. ##### #...# ##### #...# #####",
    "folder": "..... ##... ##### ##### ##### ##### #####",
    "check": "..... ....# ....# #..#. #..#. .##.. .##..",
    "clock": "..... .###. #.#.# #.### #...# .###.",
    "down": "...... ...... ###### .####. ..##..",
}

# An arrow whose tip is the cursor's pixel: # black, o white.
_CURSOR = "#....... ##...... #o#..... #oo#.... #ooo#... #oooo#.. #oo###.. ##.##... #...##..".split()


def _mask(picture: str) -> np.ndarray:
    return np.array([[pixel == "#" for pixel in row] for row in picture.split()])


_ICON_MASKS = {name: _mask(picture) for name, picture in _ICONS.items()}


def _ink(image: np.ndarray, mask: np.ndarray, x: int, y: int, colour: _Colour) -> None:
    # What reaches over the edge is cut off.
    mask = mask[: image.shape[0] - y, : max(image.shape[1] - x, 0)]
    image[y : y + mask.shape[0], x : x + mask.shape[1]][mask] = colour


def _frame(box: np.ndarray, colour: _Colour, thickness: int = 1) -> None:
    box[:thickness], box[-thickness:], box[:, :thickness], box[:, -thickness:] = colour, colour, colour, colour


@functools.lru_cache(maxsize=64)
def _blank(width: int, height: int) -> np.ndarray:
    return np.full((height, width, 3), _PAGE, np.uint8)


@functools.lru_cache(maxsize=16384)
def _paint(
    kind: Kind, text: str, value: str, width: int, height: int, on: bool, focused: bool, label: int | None
) -> np.ndarray:
    """One widget as uint8 [height, width, 3] at scale 1."""
    style = _STYLES[kind]
    image = _blank(width, height).copy()
    box = image[style.gap :, style.gap :]
    box[:] = _FILL_ON.get(kind, style.fill) if on else style.fill
    _frame(box, style.border)
    if kind in (Kind.CELL, Kind.SELECT) or (kind == Kind.FIELD and value):
        image[style.gap :, width - CELL] = style.border
    if kind == Kind.SELECT and not value:
        _ink(image, _ICON_MASKS["down"], width - CELL + 13, TEXT_Y, style.border)
    if focused or (on and kind == Kind.TAB):
        _frame(box, _BLUE, 2)
    room = width - CELL if value else width  # a long text gives way to the value
    _ink(image[:, :room], text_mask(text), TEXT_X, TEXT_Y, style.ink)
    if value:
        _ink(image, text_mask(value), width - CELL + TEXT_X, TEXT_Y, style.ink)
    icon = style.icon_on if on else style.icon
    if label is not None:
        _paint_mark(image, label)
    elif icon:
        _ink(image, _ICON_MASKS[icon], 2, TEXT_Y, _ICON)
    image.flags.writeable = False
    return image


def _paint_mark(image: np.ndarray, label: int) -> None:
    # One digit stands beside the text, more stand above it.
    digits = text_mask(str(label))
    top = TEXT_Y if label < 10 else 2
    image[top - 2 : top + 9, 0 : digits.shape[1] - 1] = (200, 24, 40)
    _ink(image, digits[:, :-1], 0, top, _WHITE)


def render(
    tree: Widget,
    labels: Mapping[str, int] | None = None,
    cursor: tuple[int, int] | None = None,
    scale: int = 1,
) -> np.ndarray:
    """Draws a screen.

    Args:
      tree: its widgets; the root's box is the screen.
      labels: Set-of-Marks numbers by key, None or {} to draw no marks.
      cursor: pixel (x, y) at scale 1 of the mouse cursor's tip, None to draw none.
      scale: whole number by which every pixel is repeated.

    Returns:
      uint8 [scale * height, scale * width, 3], a new array.
    """
    _, _, width, height = tree.box
    image = _blank(width, height).copy()
    labels = labels or {}
    for leaf in leaves(tree):
        if leaf.kind != Kind.PAGE:
            x, y, w, h = leaf.box
            label = labels.get(leaf.key)
            image[y : y + h, x : x + w] = _paint(leaf.kind, leaf.text, leaf.value, w, h, leaf.on, leaf.focused, label)
    if cursor is not None:
        x, y = cursor
        for pixel, colour in (("#", _DARK), ("o", _WHITE)):
            _ink(image, _CURSOR_MASKS[pixel], x, y, colour)
    return image if scale == 1 else image.repeat(scale, axis=0).repeat(scale, axis=1)


_CURSOR_MASKS = {pixel: np.array([[here == pixel for here in row] for row in _CURSOR]) for pixel in "#o"}
