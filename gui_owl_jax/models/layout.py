"""Host-side layout, in numpy: which patch sits where, which token sees which image, and how examples share rows.

Everything irregular about images of different sizes is computed here, once per batch; the model sees a few arrays of
fixed shape. Dimension letters: B rows, L tokens, P patches, M = P / merge_size ** 2 merged features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.models.config import QwenVLConfig, VisionConfig

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class ImagePatches:
    """One image or (a part of) a video, cut into patches.

    A Qwen3-VL video is one of these per temporal patch, each with pads of its own behind its timestamp; a Qwen2.5-VL
    video is one of these as a whole.

    Attributes:
      patches: uint8 [frames * gh * gw, columns], each temporal patch in merge order (`merge_order`). Columns of an
        image: (c * p + y) * p + x, in all C * p * p; of a video: ((c * tp + t) * p + y) * p + x, in all C * tp * p * p.
      grid: (gh, gw), patches per column and per row, both multiples of the merge size.
      frames: temporal patches; 1 for an image.
      video: its tokens are video pads, not image pads.
      seconds_per_patch: time from one temporal patch to the next (Qwen2.5-VL).
    """

    patches: np.ndarray
    grid: tuple[int, int]
    frames: int = 1
    video: bool = False
    seconds_per_patch: float = 0.0

    def __post_init__(self) -> None:
        rows = self.frames * self.grid[0] * self.grid[1]
        if self.patches.dtype != np.uint8 or self.patches.ndim != 2 or len(self.patches) != rows:
            raise DataError(
                f"ImagePatches: grid {self.grid} with {self.frames} frames needs uint8 [{rows}, columns], "
                f"got {self.patches.dtype} {list(self.patches.shape)}"
            )
        if self.frames < 1 or (self.frames > 1 and not self.video):
            raise DataError(f"ImagePatches: an image has one frame, a video one at least; got {self.frames}")


class VisualRun(NamedTuple):
    """The pads of one image or video in a token sequence, in merged units.

    Attributes:
      start: index of the first pad.
      frames: temporal patches.
      height: rows of pads per frame.
      width: pads per row.
      step: by how much the T position grows from frame to frame, before it is truncated.
    """

    start: int
    frames: int
    height: int
    width: int
    step: float = 0.0

    @property
    def pads(self) -> int:
        """Number of pads."""
        return self.frames * self.height * self.width


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
        """Patches of all images together; what they take of a row's budget is up to the tower (`patch_slots`)."""
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


def window_order(image: ImagePatches, vision: VisionConfig) -> np.ndarray:
    """Returns int32 [slots]: which patch lies in each slot of the row, -1 where none does.

    Qwen3-VL keeps the order of `ImagePatches`. Qwen2.5-VL attends inside square windows of the image, so each window
    takes a slot run of its own, cut short at the right and bottom edge and then filled up: blocks that attend inside
    windows work on [windows, window] without any mask but that. A grid of 2 x 3 merged patches (one patch each, to
    keep it short) under windows of 2 x 2 gives 0 1 3 4 | 2 5 -1 -1.
    """
    if not vision.window_side:
        return np.arange(len(image.patches), dtype=np.int32)
    side, area = vision.window_side, vision.merge_size**2
    height, width = (n // vision.merge_size for n in image.grid)
    rows, columns = -(-height // side), -(-width // side)
    blocks = np.full((rows * side, columns * side), -1, np.int32)
    blocks[:height, :width] = np.arange(height * width).reshape(height, width)
    windows = blocks.reshape(rows, side, columns, side).transpose(0, 2, 1, 3).reshape(-1, side * side)
    slots = np.take_along_axis(windows, np.argsort(windows < 0, axis=1, kind="stable"), axis=1).ravel()
    frames = np.arange(image.frames)[:, None] * height * width + slots
    filled = np.broadcast_to(slots >= 0, frames.shape).ravel()
    patches = frames.reshape(-1, 1) * area + np.arange(area)
    return np.where(filled[:, None], patches, -1).ravel().astype(np.int32)


def feature_order(slots: np.ndarray, merge: int) -> np.ndarray:
    """Returns int32 [pads]: the merged feature, counted from the image's first slot, that each of its pads receives.

    It undoes `window_order`: slots 0 1 3 4 2 5 -1 -1 (one patch per feature) give 0 1 4 2 3 5.
    """
    blocks = slots[:: merge**2] // merge**2
    used = np.flatnonzero(blocks >= 0)
    return used[np.argsort(blocks[used])].astype(np.int32)


def patch_slots(image: ImagePatches, vision: VisionConfig) -> int:
    """Returns how much of a row's patch budget an image takes."""
    if not vision.window_side:
        return len(image.patches)
    side = vision.window_side * vision.merge_size
    windows = -(-image.grid[0] // side) * -(-image.grid[1] // side)
    return image.frames * windows * side * side


# ---------------------------------------------------------------------------------------------- one example


def find_image_starts(tokens: np.ndarray, images: Sequence[ImagePatches], config: QwenVLConfig) -> tuple[int, ...]:
    """Finds the first pad of each image: vision_start, exactly as many pads as it has features, vision_end, in order.

    Raises:
      DataError: an image has no such run.
    """
    opened = np.flatnonzero(tokens[:-1] == config.vision_start_token_id)
    starts: list[int] = []
    for number, image in enumerate(images):
        pad, count = _pads(image, config)
        for start in opened + 1:
            run = tokens[start : start + count + 1]
            whole = len(run) == count + 1 and run[-1] == config.vision_end_token_id
            if start > (starts[-1] if starts else -1) and whole and (run[:-1] == pad).all():
                starts.append(int(start))
                break
        else:
            kind = "video" if image.video else "image"
            raise DataError(f"image {number} of the example needs a run of {count} {kind} pads; the tokens have none")
    return tuple(starts)


def _pads(image: ImagePatches, config: QwenVLConfig) -> tuple[int, int]:
    """The pad token of an image or video, and how many of them it has."""
    token = config.video_token_id if image.video else config.image_token_id
    return token, len(image.patches) // config.vision.merge_size**2


def rope_positions(length: int, runs: Sequence[VisualRun], rule: str = "largest") -> tuple[np.ndarray, int]:
    """Rotary positions (T, H, W) of a sequence with images and videos (`get_rope_index` of the reference).

    Text counts up on all three axes. An image of h x w tokens keeps T still and spreads H and W; the next token starts
    behind the largest of them. Three text tokens, a 2 x 3 image and a text token:

      T  0 1 2  3 3 3 3 3 3  6
      H  0 1 2  3 3 3 4 4 4  6
      W  0 1 2  3 4 5 3 4 5  6

    Frame a of a video has T larger by int(a * step).

    Args:
      length: number of tokens.
      runs: the images and videos, in order.
      rule: see `QwenVLConfig.video_positions`.

    Returns:
      int32 [length, 3] and the position of the token that would come next.
    """
    positions = np.zeros((length, 3), np.int32)
    done, following = 0, 0
    for run in runs:
        positions[done : run.start] = np.arange(following, following + run.start - done)[:, None]
        following += run.start - done
        done = run.start + run.pads
        t, h, w = np.indices((run.frames, run.height, run.width)).reshape(3, -1)
        spread = np.stack([frame_positions(t, run.step), h, w], axis=-1)
        positions[run.start : done] = following + spread
        following += int(spread.max()) + 1 if rule == "largest" else max(run.height, run.width)
    positions[done:] = np.arange(following, following + length - done)[:, None]
    return positions, following + length - done


def frame_positions(frames: np.ndarray, step: float) -> np.ndarray:
    """Returns the T positions of temporal patches, counted from the first: truncated multiples of the step."""
    return np.trunc(frames * step).astype(np.int32)


def image_runs(example: Example, config: QwenVLConfig) -> list[VisualRun]:
    """Returns where the images and videos of an example stand among its tokens.

    Raises:
      DataError: the pads do not fit the images.
    """
    vision = config.vision
    starts = example.image_starts
    if starts is None:
        starts = find_image_starts(example.tokens, example.images, config)
    runs, end = [], 0
    for start, image in zip(starts, example.images):
        pad, count = _pads(image, config)
        found = example.tokens[start : start + count]
        if start < end or len(found) != count or (found != pad).any():
            raise DataError(f"image_starts: no {count} {'video' if image.video else 'image'} pads at token {start}")
        end = start + count
        height, width = (n // vision.merge_size for n in image.grid)
        step = vision.tokens_per_second * image.seconds_per_patch
        runs.append(VisualRun(start, image.frames, height, width, step))
    return runs


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
    counts = [patch_slots(image, config.vision) for member in members for image in member.images]
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
      patches uint8 [B, P, `patch_columns`]; patch_segment_ids int32 [B, P], 0 for padding, from 1 per image and frame;
      patch_coords int32 [B, P, 2]; for towers with a table of positions pos_index int32 [B, P, 4] and pos_weight
      float32 [B, P, 4]; and each of the extras as [B, L].

    Raises:
      DataError: a row exceeds a budget, the pads do not fit the images, or the examples carry different extras.
    """
    vision = config.vision
    merge, count = vision.merge_size, len(rows)
    unit = max(vision.window, (max(vision.window_side, 1) * merge) ** 2)
    if patch_budget % unit:
        raise DataError(f"patch_budget {patch_budget} must be a multiple of {unit}")
    batch: Batch = {
        "tokens": np.zeros((count, token_budget), np.int32),
        "segment_ids": np.zeros((count, token_budget), np.int32),
        "positions": np.zeros((count, token_budget, 3), np.int32),
        "loss_mask": np.zeros((count, token_budget), np.float32),
        "visual_index": np.full((count, token_budget), -1, np.int32),
        "patches": np.zeros((count, patch_budget, vision.patch_columns), np.uint8),
        "patch_segment_ids": np.zeros((count, patch_budget), np.int32),
        "patch_coords": np.zeros((count, patch_budget, 2), np.int32),
    }
    if vision.num_position_embeddings:
        batch["pos_index"] = np.zeros((count, patch_budget, 4), np.int32)
        batch["pos_weight"] = np.zeros((count, patch_budget, 4), np.float32)
    extras = _extra_arrays(rows, token_budget)
    batch |= extras
    for b, members in enumerate(rows):
        images = [image for example in members for image in example.images]
        offsets, used = place_images([patch_slots(image, vision) for image in images], vision.window)
        length = sum(len(example.tokens) for example in members)
        if length > token_budget or used > patch_budget:
            raise DataError(f"row {b} has {length} tokens and {used} patches; budgets: {token_budget}, {patch_budget}")
        features = _put_images(batch, b, images, offsets, config)
        begin, feature_of = 0, iter(features)
        for segment, example in enumerate(members, start=1):
            span = slice(begin, begin + len(example.tokens))
            runs = image_runs(example, config)
            batch["tokens"][b, span] = example.tokens
            batch["segment_ids"][b, span] = segment
            batch["positions"][b, span] = rope_positions(len(example.tokens), runs, config.video_positions)[0]
            batch["loss_mask"][b, span] = example.loss_mask
            for name in extras:
                batch[name][b, span] = example.extras[name]
            for run in runs:
                batch["visual_index"][b, begin + run.start : begin + run.start + run.pads] = next(feature_of)
            begin = span.stop
    return batch


def _put_images(
    batch: Batch, row: int, images: Sequence[ImagePatches], offsets: Sequence[int], config: QwenVLConfig
) -> list[np.ndarray]:
    """Fills in the images of a row; returns for each the merged features of the row that its pads receive."""
    vision = config.vision
    merge, features, segments = vision.merge_size, [], 0
    for image, offset in zip(images, offsets):
        if image.grid[0] % merge or image.grid[1] % merge:
            raise DataError(f"image grid {image.grid} is no multiple of the merge size {merge}")
        slots = window_order(image, vision)
        at, source = offset + np.flatnonzero(slots >= 0), slots[slots >= 0]
        area = image.grid[0] * image.grid[1]  # frames are alike but for their pixels
        batch["patches"][row, at] = _columns(image, vision)[source]
        batch["patch_segment_ids"][row, at] = segments + 1 + source // area
        batch["patch_coords"][row, at] = rotary_coordinates(image.grid, merge)[source % area]
        if vision.num_position_embeddings:
            index, weight = table_corners(image.grid, merge, vision.table_side)
            batch["pos_index"][row, at] = index[source % area]
            batch["pos_weight"][row, at] = weight[source % area]
        features.append(offset // merge**2 + feature_order(slots, merge))
        segments += image.frames
    return features


def _columns(image: ImagePatches, vision: VisionConfig) -> np.ndarray:
    """The patches as they travel: those of an image once per frame where rows may hold videos."""
    patches, copies = image.patches, 1
    if image.video and not vision.video:
        raise DataError("the row holds a video; set vision.video in the model's config, so that all frames travel")
    if vision.video and not image.video:
        copies = vision.temporal_patch_size
    if patches.shape[1] * copies != vision.patch_columns:
        expected = vision.patch_columns // copies
        raise DataError(f"patches have {patches.shape[1]} columns, the model takes {expected}")
    if copies == 1:
        return patches
    planes = patches.reshape(len(patches), vision.channels, 1, -1)
    return np.repeat(planes, copies, axis=2).reshape(len(patches), -1)


def lay_out_prompts(prompts: Sequence[Example], config: QwenVLConfig, token_budget: int, patch_budget: int) -> Batch:
    """Lays out one prompt per row, right-padded, for prefill and decoding.

    Returns:
      the arrays of `lay_out_rows`, and lengths int32 [B] and next_position int32 [B], the rotary position (all axes)
      of the first generated token.
    """
    batch = lay_out_rows([[prompt] for prompt in prompts], config, token_budget, patch_budget)
    batch["lengths"] = np.array([len(prompt.tokens) for prompt in prompts], np.int32)
    rule = config.video_positions
    following = [rope_positions(len(prompt.tokens), image_runs(prompt, config), rule)[1] for prompt in prompts]
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
