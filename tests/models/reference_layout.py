"""What the host computes for the model, a second time: plain loops over patches, blocks and tokens.

Written from the description of the models and not from `gui_owl_jax.models.layout`, with which it shares no code.
Everything is in Python numbers and float64. The tests beside it compare it with transformers first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Picture(NamedTuple):
    """An image, one temporal patch of a Qwen3-VL video, or a whole Qwen2.5-VL video.

    Attributes:
      frames: temporal patches.
      rows, columns: patches per column and per row of a frame.
      seconds: between temporal patches of a Qwen2.5-VL video.
    """

    frames: int
    rows: int
    columns: int
    seconds: float = 0.0

    def blocks(self, merge: int) -> int:
        """Merged patches, which are tokens of the language model."""
        return self.frames * (self.rows // merge) * (self.columns // merge)


class Patch(NamedTuple):
    """One patch: its frame, and its row and column there."""

    frame: int
    row: int
    column: int


def block_patches(picture: Picture, merge: int) -> Iterator[list[Patch]]:
    """The patches of each block; blocks go frame by frame, row by row, and so do the patches inside one."""
    for frame in range(picture.frames):
        for top in range(0, picture.rows, merge):
            for left in range(0, picture.columns, merge):
                inside = [(y, x) for y in range(merge) for x in range(merge)]
                yield [Patch(frame, top + y, left + x) for y, x in inside]


def windows(picture: Picture, merge: int, side: int) -> list[list[int]]:
    """The blocks of each attention window of side x side blocks, ragged at the right and bottom edge."""
    high, wide = picture.rows // merge, picture.columns // merge
    result = []
    for frame in range(picture.frames):
        for top in range(0, high, side):
            for left in range(0, wide, side):
                window = []
                for row in range(top, min(top + side, high)):
                    for column in range(left, min(left + side, wide)):
                        window.append((frame * high + row) * wide + column)
                result.append(window)
    return result


def interpolated(table: np.ndarray, patch: Patch, picture: Picture) -> np.ndarray:
    """The position embedding of a patch: float64 [D], bilinear in a table [S, S, D]; ends meet ends."""
    side = len(table)
    y = patch.row * (side - 1) / max(picture.rows - 1, 1)
    x = patch.column * (side - 1) / max(picture.columns - 1, 1)
    top, left = math.floor(y), math.floor(x)
    bottom, right = min(top + 1, side - 1), min(left + 1, side - 1)
    down, over = y - top, x - left
    corners = [
        ((1 - down) * (1 - over), table[top, left]),
        ((1 - down) * over, table[top, right]),
        (down * (1 - over), table[bottom, left]),
        (down * over, table[bottom, right]),
    ]
    return sum(weight * row.astype(np.float64) for weight, row in corners)


def positions(
    parts: list[int | Picture], merge: int, tokens_per_second: float, rule: str
) -> tuple[list[tuple[int, int, int]], int]:
    """Rotary positions (T, H, W) of a sequence.

    Args:
      parts: numbers of text tokens, and the pictures between them.
      merge: patches per side of a block.
      tokens_per_second: how fast T counts through a video.
      rule: text goes on behind the "largest" position of a picture, or behind its "extent" in height and width.

    Returns:
      a position per token, and the one that the next token would have.
    """
    result: list[tuple[int, int, int]] = []
    following = 0
    for part in parts:
        if isinstance(part, int):
            result += [(n, n, n) for n in range(following, following + part)]
            following += part
            continue
        high, wide = part.rows // merge, part.columns // merge
        own = []
        for frame in range(part.frames):
            ahead = int(frame * tokens_per_second * part.seconds)
            for row in range(high):
                for column in range(wide):
                    own.append((following + ahead, following + row, following + column))
        result += own
        if rule == "largest":
            following = 1 + max(max(position) for position in own)
        else:
            following += max(high, wide)
    return result, following
