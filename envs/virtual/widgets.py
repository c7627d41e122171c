"""The widget tree: what a screen shows, apart from how it is drawn.

Screens are laid out on a grid of cells of 32 x 32 pixels, the area of one visual token of the models, so that a word
always looks the same to them. A renderer (`envs.virtual.raster` is one) draws the tree; the same tree says where a
click lands, what the marks on a web page are, and what the annotation of the screen is.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator

from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.elements import ScreenElement

CELL = 32  # pixels

# Columns and rows of the screens; a phone is 3 x 5 cells = 96 x 160 pixels.
GRIDS = {DeviceFamily.MOBILE: (3, 5), DeviceFamily.DESKTOP: (5, 3), DeviceFamily.WEB: (4, 4)}


class Kind(enum.StrEnum):
    """What a widget is; renderers choose its looks by it."""

    PAGE = "page"
    BAR = "bar"  # title of a screen
    LABEL = "label"  # text that does nothing
    TAB = "tab"
    TILE = "tile"
    ROW = "row"
    SWITCH = "switch"
    OPTION = "option"
    BUTTON = "button"
    TIMER = "timer"
    CHIP = "chip"  # suggestion of a quick reply
    FIELD = "field"
    BUBBLE = "bubble"  # message of a chat
    FILE = "file"
    FOLDER = "folder"
    MENU = "menu"
    ENTRY = "entry"  # line of an open menu
    CELL = "cell"  # labelled cell of a sheet
    LINK = "link"
    SELECT = "select"
    SCROLLBAR = "scrollbar"  # its thumb, at the right edge


@dataclasses.dataclass(frozen=True)
class Widget:
    """One node of the tree.

    Attributes:
      kind: what it is.
      text: the text drawn at the start of its first cell.
      box: (x, y, width, height) in pixels at scale 1.
      key: the name by which events refer to it, "role:name"; "" for what cannot be clicked. Unique on its screen.
      value: the text drawn at the start of its last cell.
      on: selected, switched on, sent by the user; depends on the kind.
      focused: text typed now goes here.
      children: widgets inside; later ones lie above earlier ones.
    """

    kind: Kind
    text: str = ""
    box: tuple[int, int, int, int] = (0, 0, CELL, CELL)
    key: str = ""
    value: str = ""
    on: bool = False
    focused: bool = False
    children: tuple[Widget, ...] = ()

    @property
    def centre(self) -> tuple[int, int]:
        """The pixel (x, y) at its centre, at scale 1."""
        x, y, width, height = self.box
        return x + width // 2, y + height // 2


def place(
    kind: Kind,
    text: str,
    column: int,
    row: int,
    columns: int = 1,
    *,
    key: str = "",
    value: str = "",
    on: bool = False,
    focused: bool = False,
) -> Widget:
    """A widget one row high whose first cell is (column, row)."""
    box = (column * CELL, row * CELL, columns * CELL, CELL)
    return Widget(kind, text, box, key=key, value=value, on=on, focused=focused)


def page(family: DeviceFamily, *children: Widget) -> Widget:
    """The root of a screen of `family`."""
    columns, rows = GRIDS[family]
    return Widget(Kind.PAGE, box=(0, 0, columns * CELL, rows * CELL), children=children)


def scrollbar(family: DeviceFamily, top: int, first: int, total: int) -> tuple[Widget, ...]:
    """The scroll bar of a list, none where all of it is in sight.

    Args:
      family: device family; the bar stands at the right edge of its screen.
      top: row of the screen that the list starts at; it reaches down to the last row.
      first: row of the list that is on top.
      total: rows of the list.
    """
    width, height = screen_size(family)
    rows = GRIDS[family][1] - top
    if total <= rows:
        return ()
    track = height - top * CELL
    return (Widget(Kind.SCROLLBAR, box=(width - 2, top * CELL + track * first // total, 2, track * rows // total)),)


def screen_size(family: DeviceFamily) -> tuple[int, int]:
    """Width and height in pixels at scale 1."""
    columns, rows = GRIDS[family]
    return columns * CELL, rows * CELL


def leaves(tree: Widget) -> Iterator[Widget]:
    """The widgets without children, bottom to top."""
    if not tree.children:
        yield tree
    for child in tree.children:
        yield from leaves(child)


def reading_order(tree: Widget) -> list[Widget]:
    """The leaves of the tree by row, then from left to right; an empty page has none."""
    found = [leaf for leaf in leaves(tree) if leaf.kind != Kind.PAGE]
    return sorted(found, key=lambda leaf: (leaf.box[1], leaf.box[0]))


def hit(tree: Widget, x: float, y: float) -> Widget | None:
    """The clickable leaf at pixel (x, y) of scale 1, the topmost if several, None if there is none."""
    found = None
    for leaf in leaves(tree):
        left, top, width, height = leaf.box
        if leaf.key and left <= x < left + width and top <= y < top + height:
            found = leaf
    return found


def find(tree: Widget, key: str) -> Widget | None:
    """The leaf with this key, or None."""
    return next((leaf for leaf in leaves(tree) if leaf.key == key), None)


def marks(tree: Widget) -> dict[str, int]:
    """Set-of-Marks numbers: key -> label, counting the clickable leaves from 1 in reading order."""
    keys = [leaf.key for leaf in reading_order(tree) if leaf.key]
    return {key: label for label, key in enumerate(keys, start=1)}


def elements(tree: Widget, labels: dict[str, int], scale: int = 1) -> tuple[ScreenElement, ...]:
    """The annotation of a screen drawn at `scale`: all leaves with text, in reading order.

    The text of a widget with a value is both, e.g. "Ann 47".
    """
    found = []
    for leaf in reading_order(tree):
        text = " ".join(part for part in (leaf.text, leaf.value) if part)
        x, y, width, height = (scale * side for side in leaf.box)
        clickable = bool(leaf.key)
        if text or clickable:
            found.append(ScreenElement(text, str(leaf.kind), (x, y, width, height), labels.get(leaf.key), clickable))
    return tuple(found)
