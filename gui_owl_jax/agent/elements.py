"""What is on a screen: the annotation that environments give and that grounding data is made from.

The agent never sees it; it sees the screenshot alone.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gui_owl_jax.agent.devices import DeviceFamily


@dataclasses.dataclass(frozen=True)
class ScreenElement:
    """One visible element of a screen.

    Attributes:
      text: the text drawn on it ("" for none).
      kind: its widget kind, e.g. "button", "row", "field".
      box: (x, y, width, height) in pixels of the screenshot; x and y of the upper left corner.
      label: the number of its Set-of-Marks chip, None where the screen draws no marks.
      clickable: whether a click on it has an effect.
    """

    text: str
    kind: str
    box: tuple[int, int, int, int]
    label: int | None = None
    clickable: bool = True

    @property
    def centre(self) -> tuple[int, int]:
        """The pixel (x, y) at its centre, rounded down; always inside the box."""
        x, y, width, height = self.box
        return x + width // 2, y + height // 2

    def contains(self, x: float, y: float) -> bool:
        """Whether pixel (x, y) lies inside the box: left and upper edge included, right and lower edge not."""
        left, top, width, height = self.box
        return left <= x < left + width and top <= y < top + height


@dataclasses.dataclass(frozen=True, eq=False)
class AnnotatedScreen:
    """A screenshot with what is on it.

    Attributes:
      image: uint8 [H, W, 3].
      elements: in reading order.
      family: device family it was taken on.
      app: name of the app it shows.
    """

    image: np.ndarray
    elements: tuple[ScreenElement, ...]
    family: DeviceFamily
    app: str = ""
