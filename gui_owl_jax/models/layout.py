"""Host-side layout, in numpy: which patch sits where, which token sees which image, and how examples share rows.

Everything irregular about images of different sizes is computed here, once per batch; the model sees a few arrays of
fixed shape. Dimension letters: B rows, L tokens, P patches, M = P / merge_size ** 2 merged features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.models.config import QwenVLConfig

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class ImagePatches:
    """One image cut into patches.

    Attributes:
      patches: uint8 [gh * gw, C * p * p] in merge order (`merge_order`), column (c * p + y) * p + x.
      grid: (gh, gw), patches per column and per row, both multiples of the merge size.
    """

    patches: np.ndarray
    grid: tuple[int, int]

    def __post_init__(self) -> None:
        if self.patches.dtype != np.uint8 or self.patches.ndim != 2 or len(self.patches) != self.grid[0] * self.grid[1]:
            raise DataError(
                f"ImagePatches: grid {self.grid} needs uint8 [{self.grid[0] * self.grid[1]}, columns], "
                f"got {self.patches.dtype} {list(self.patches.shape)}"
            )


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """A token sequence with its images, as the model is trained on it.

    Attributes:
      tokens: int32 [l], image pads already expanded to one per merged feature.
      loss_mask: float32 [l], above 0 where that token is a training target; 0 on the first one, which nothing predicts.
      images: in the order of their pads.
      extras: further arrays [l] that travel with the tokens (advantages, sampler log-probabilities, ...).
      image_starts: index of each image's first pad. Left out, it is found: vision_start, pads, vision_end. Give it when
        the tokens hold sampled turns, where a stray pad is an ordinary token.
    """

    tokens: np.ndarray
    loss_mask: np.ndarray
    images: tuple[ImagePatches, ...] = ()
    extras: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    image_starts: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        length = len(self.tokens)
        if length == 0 or self.tokens.ndim != 1:
            raise DataError(f"Example: tokens must be a non-empty vector, got shape {list(self.tokens.shape)}")
        for name, array in {"loss_mask": self.loss_mask, **self.extras}.items():
            if array.shape != (length,):
                raise DataError(f"Example: {name} has shape {list(array.shape)}, tokens have [{length}]")
        if self.loss_mask[0] > 0:
            raise DataError("Example: loss_mask is set on the first token, which no earlier token predicts")
        if self.image_starts is not None and len(self.image_starts) != len(self.images):
            raise DataError(f"Example: {len(self.images)} images but {len(self.image_starts)} image_starts")

    @property
    def patch_count(self) -> int:
        """Patches of all images together."""
        return sum(len(image.patches) for image in self.images)


# ---------------------------------------------------------------------------------------------- one image


def merge_order(grid: tuple[int, int], merge: int) -> np.ndarray:
    """Returns int32 [gh * gw, 2]: the (row, column) of each patch, the merge * merge patches of one token adjacent.

    For grid (2, 4) and merge 2: (0,0) (0,1) (1,0) (1,1) then (0,2) (0,3) (1,2) (1,3).
    """
    rows, columns = np.indices(grid, dtype=np.int32)
    blocks = np.stack([rows, columns], axis=-1).reshape(grid[0] // merge, merge, grid[1] // merge, merge, 2)
    return blocks.transpose(0, 2, 1, 3, 4).reshape(-1, 2)


def rotary_coordinates(grid: tuple[int, int], merge: int) -> np.ndarray:
    """Returns int32 [gh * gw, 2]: the (row, column) that turns each patch's queries and keys."""
    return merge_order(grid, merge)


def table_coordinates(index: np.ndarray, length: int, side: int) -> np.ndarray:
    """Maps patch indices of an axis with `length` patches to [0, side - 1]: ends meet ends (align_corners=True)."""
    return index * np.float32((side - 1) / max(length - 1, 1))


def table_corners(grid: tuple[int, int], merge: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the four rows of the learned position table around each patch and their bilinear weights.

    Returns:
      index int32 [gh * gw, 4] into the side * side table, and weight float32 [gh * gw, 4], each row summing to 1.
    """
    row, column = merge_order(grid, merge).T
    y = table_coordinates(row, grid[0], side)
    x = table_coordinates(column, grid[1], side)
    y0, x0 = np.floor(y).astype(np.int32), np.floor(x).astype(np.int32)
    y1, x1 = np.minimum(y0 + 1, side - 1), np.minimum(x0 + 1, side - 1)
    dy, dx = y - y0, x - x0
    index = np.stack([y0 * side + x0, y0 * side + x1, y1 * side + x0, y1 * side + x1], axis=-1)
    weight = np.stack([(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx], axis=-1)
    return index.astype(np.int32), weight.astype(np.float32)


# ---------------------------------------------------------------------------------------------- one example


def find_image_starts(tokens: np.ndarray, counts: Sequence[int], config: QwenVLConfig) -> tuple[int, ...]:
    """Finds the first pad of each image: vision_start, exactly counts[i] pads, vision_end, in order.

    Raises:
      DataError: an image has no such run.
    """
    opened = np.flatnonzero(tokens[:-1] == config.vision_start_token_id)
    starts: list[int] = []
    for number, count in enumerate(counts):
        for start in opened + 1:
            run = tokens[start : start + count + 1]
            whole = len(run) == count + 1 and run[-1] == config.vision_end_token_id
            if start > (starts[-1] if starts else -1) and whole and (run[:-1] == config.image_token_id).all():
                starts.append(int(start))
                break
        else:
            raise DataError(f"image {number} of the example needs a run of {count} image pads; the tokens have none")
    return tuple(starts)


def rope_positions(length: int, runs: Sequence[tuple[int, int, int]]) -> tuple[np.ndarray, int]:
    """Rotary positions (T, H, W) of a sequence with images (`get_rope_index` of Qwen3-VL).

    Text counts up on all three axes. An image of h x w tokens keeps T still and spreads H and W; the next token starts
    behind the largest of them. Three text tokens, a 2 x 3 image and a text token:

      T  0 1 2  3 3 3 3 3 3  6
      H  0 1 2  3 3 3 4 4 4  6
      W  0 1 2  3 4 5 3 4 5  6

    Args:
      length: number of tokens.
      runs: (first pad, h, w) of each image in merged units, in order.

    Returns:
      int32 [length, 3] and the position of the token that would come next.
    """
    positions = np.zeros((length, 3), np.int32)
    done, following = 0, 0
    for start, height, width in runs:
        positions[done:start] = np.arange(following, following + start - done)[:, None]
        following += start - done
        done = start + height * width
        positions[start:done, 0] = following
        positions[start:done, 1:] = following + np.indices((height, width)).reshape(2, -1).T
        following += max(height, width)
    positions[done:] = np.arange(following, following + length - done)[:, None]
    return positions, following + length - done


def image_runs(example: Example, config: QwenVLConfig) -> list[tuple[int, int, int]]:
    """Returns (first pad, height, width) of each image of the example, in merged units.

    Raises:
      DataError: the pads do not fit the images.
    """
    merge = config.vision.merge_size
    grids = [(image.grid[0] // merge, image.grid[1] // merge) for image in example.images]
    starts = example.image_starts
    if starts is None:
        starts = find_image_starts(example.tokens, [h * w for h, w in grids], config)
    end = 0
    for start, (height, width) in zip(starts, grids):
        run = example.tokens[start : start + height * width]
        if start < end or len(run) != height * width or (run != config.image_token_id).any():
            raise DataError(f"image_starts: no {height * width} image pads at token {start}")
        end = start + height * width
    return [(start, height, width) for start, (height, width) in zip(starts, grids)]


# ---------------------------------------------------------------------------------------------- rows


def place_images(counts: Sequence[int], window: int) -> tuple[list[int], int]:
    """Returns each image's first patch in its row, and the patches used in all.

    With window 0 images follow each other. With window w no image straddles a multiple of w; counts (40, 40, 20) and
    window 64 give offsets 0, 64, 104 and 124 patches used.

    Raises:
      DataError: an image is larger than the window.
    """
    offsets, used = [], 0
    for count in counts:
        if window:
            if count > window:
                raise DataError(f"an image of {count} patches does not fit the vision window of {window}")
            if used % window + count > window:
                used += -used % window
        offsets.append(used)
        used += count
    return offsets, used


def fits(row: Sequence[Example], example: Example, config: QwenVLConfig, token_budget: int, patch_budget: int) -> bool:
    """Whether the example still fits into the row by both budgets."""
    members = [*row, example]
    tokens = sum(len(member.tokens) for member in members)
    counts = [len(image.patches) for member in members for image in member.images]
    return tokens <= token_budget and place_images(counts, config.vision.window)[1] <= patch_budget


def assign(
    examples: Sequence[Example], config: QwenVLConfig, *, rows: int, token_budget: int, patch_budget: int
) -> tuple[list[list[int]], list[int]]:
    """First-fit assignment of examples to rows.

    Returns:
      the indices in each of the `rows` rows, and the indices that found no room (in order).

    Raises:
      DataError: an example exceeds a budget on its own, so that no row could ever take it.
    """
    filled: list[list[int]] = [[] for _ in range(rows)]
    left: list[int] = []
    for index, example in enumerate(examples):
        if not fits([], example, config, token_budget, patch_budget):
            raise DataError(
                f"example {index} has {len(example.tokens)} tokens and {example.patch_count} patches; "
                f"a row holds {token_budget} and {patch_budget}"
            )
        for members in filled:
            if fits([examples[i] for i in members], example, config, token_budget, patch_budget):
                members.append(index)
                break
        else:
            left.append(index)
    return filled, left


def pack(
    examples: Sequence[Example], config: QwenVLConfig, *, rows: int, token_budget: int, patch_budget: int
) -> tuple[Batch, list[int]]:
    """Packs examples first-fit into one batch; see `lay_out_rows` for its arrays.

    Returns:
      the batch, and the indices of the examples that found no room.
    """
    filled, left = assign(examples, config, rows=rows, token_budget=token_budget, patch_budget=patch_budget)
    members = [[examples[i] for i in row] for row in filled]
    return lay_out_rows(members, config, token_budget, patch_budget), left


def lay_out_rows(
    rows: Sequence[Sequence[Example]], config: QwenVLConfig, token_budget: int, patch_budget: int
) -> Batch:
    """Lays out examples that were assigned to rows as the arrays the model reads.

    Two examples in a row of 8 tokens: segment_ids 1 1 1 2 2 2 2 0, positions restart at the second example. Logits at
    token i - 1 are scored against tokens[i] where loss_mask[i] > 0.

    Returns:
      tokens int32 [B, L]; segment_ids int32 [B, L], 0 for padding, from 1 per example; positions int32 [B, L, 3];
      loss_mask float32 [B, L]; visual_index int32 [B, L], the row's merged feature that a pad receives, -1 elsewhere;
      patches uint8 [B, P, C*p*p]; patch_segment_ids int32 [B, P], 0 for padding, from 1 per image; patch_coords
      int32 [B, P, 2]; pos_index int32 [B, P, 4]; pos_weight float32 [B, P, 4]; and each of the extras as [B, L].

    Raises:
      DataError: a row exceeds a budget, the pads do not fit the images, or the examples carry different extras.
    """
    vision = config.vision
    merge, count = vision.merge_size, len(rows)
    if patch_budget % max(vision.window, merge**2):
        raise DataError(f"patch_budget {patch_budget} must be a multiple of {max(vision.window, merge**2)}")
    batch: Batch = {
        "tokens": np.zeros((count, token_budget), np.int32),
        "segment_ids": np.zeros((count, token_budget), np.int32),
        "positions": np.zeros((count, token_budget, 3), np.int32),
        "loss_mask": np.zeros((count, token_budget), np.float32),
        "visual_index": np.full((count, token_budget), -1, np.int32),
        "patches": np.zeros((count, patch_budget, vision.patch_columns), np.uint8),
        "patch_segment_ids": np.zeros((count, patch_budget), np.int32),
        "patch_coords": np.zeros((count, patch_budget, 2), np.int32),
        "pos_index": np.zeros((count, patch_budget, 4), np.int32),
        "pos_weight": np.zeros((count, patch_budget, 4), np.float32),
    }
    extras = _extra_arrays(rows, token_budget)
    batch |= extras
    for b, members in enumerate(rows):
        images = [image for example in members for image in example.images]
        offsets, used = place_images([len(image.patches) for image in images], vision.window)
        length = sum(len(example.tokens) for example in members)
        if length > token_budget or used > patch_budget:
            raise DataError(f"row {b} has {length} tokens and {used} patches; budgets: {token_budget}, {patch_budget}")
        _put_images(batch, b, images, offsets, config)
        begin, offset_of = 0, iter(offsets)
        for segment, example in enumerate(members, start=1):
            span = slice(begin, begin + len(example.tokens))
            runs = image_runs(example, config)
            batch["tokens"][b, span] = example.tokens
            batch["segment_ids"][b, span] = segment
            batch["positions"][b, span] = rope_positions(len(example.tokens), runs)[0]
            batch["loss_mask"][b, span] = example.loss_mask
            for name in extras:
                batch[name][b, span] = example.extras[name]
            for start, height, width in runs:
                pads = slice(begin + start, begin + start + height * width)
                batch["visual_index"][b, pads] = next(offset_of) // merge**2 + np.arange(height * width)
            begin = span.stop
    return batch


def _put_images(
    batch: Batch, row: int, images: Sequence[ImagePatches], offsets: Sequence[int], config: QwenVLConfig
) -> None:
    vision = config.vision
    for number, (image, offset) in enumerate(zip(images, offsets), start=1):
        if image.grid[0] % vision.merge_size or image.grid[1] % vision.merge_size:
            raise DataError(f"image grid {image.grid} is no multiple of the merge size {vision.merge_size}")
        if image.patches.shape[1] != vision.patch_columns:
            raise DataError(f"patches have {image.patches.shape[1]} columns, the model takes {vision.patch_columns}")
        span = slice(offset, offset + len(image.patches))
        index, weight = table_corners(image.grid, vision.merge_size, vision.table_side)
        batch["patches"][row, span] = image.patches
        batch["patch_segment_ids"][row, span] = number
        batch["patch_coords"][row, span] = rotary_coordinates(image.grid, vision.merge_size)
        batch["pos_index"][row, span] = index
        batch["pos_weight"][row, span] = weight


def lay_out_prompts(prompts: Sequence[Example], config: QwenVLConfig, token_budget: int, patch_budget: int) -> Batch:
    """Lays out one prompt per row, right-padded, for prefill and decoding.

    Returns:
      the arrays of `lay_out_rows`, and lengths int32 [B] and next_position int32 [B], the rotary position (all axes)
      of the first generated token.
    """
    batch = lay_out_rows([[prompt] for prompt in prompts], config, token_budget, patch_budget)
    batch["lengths"] = np.array([len(prompt.tokens) for prompt in prompts], np.int32)
    following = [rope_positions(len(prompt.tokens), image_runs(prompt, config))[1] for prompt in prompts]
    batch["next_position"] = np.array(following, np.int32)
    return batch


def _extra_arrays(rows: Sequence[Sequence[Example]], token_budget: int) -> Batch:
    examples = [example for row in rows for example in row]
    if not examples:
        return {}
    names = examples[0].extras.keys()
    for example in examples:
        if example.extras.keys() != names:
            raise DataError(f"examples of one batch carry different extras: {set(names)} and {set(example.extras)}")
    return {name: np.zeros((len(rows), token_budget), examples[0].extras[name].dtype) for name in names}
