"""Host metadata of 300 random batches against the reference in reference_layout.py, and that against transformers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from gui_owl_jax.hf.checkpoint import import_hf
from gui_owl_jax.models import layout
from gui_owl_jax.models.config import QwenVLConfig, get_preset
from tests.models import reference_layout
from tests.models.reference_layout import Picture

MODELS = ("qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl")

# ---------------------------------------------------------------------------------- the reference itself


def parts_of(case: dict, row: int, merge: int, whole_videos: bool) -> list[int | Picture]:
    """Cuts a sequence of a fixture into texts and pictures by the type ids of its tokens."""
    types = case["mm_token_type_ids"][row][case["attention_mask"][row] == 1].tolist()
    grids = {1: [], 2: []}
    for kind, name in ((1, "image_grid_thw"), (2, "video_grid_thw")):
        grids[kind] = [tuple(grid) for grid in case.get(name, np.zeros((0, 3), int)).tolist()]
    if row:  # of the batch, in which every sequence has one image
        grids[1] = grids[1][row:]
    seconds = case.get("second_per_grid_ts", np.zeros(1)).tolist()
    if not whole_videos:
        grids[2] = [(1, *grid[1:]) for grid in grids[2] for _ in range(grid[0])]
    parts: list[int | Picture] = []
    while types:
        if types[0]:
            picture = Picture(*grids[types[0]].pop(0), seconds[0] if types[0] == 2 else 0.0)
            parts.append(picture)
            assert set(types[: picture.blocks(merge)]) == {types[0]}
            types = types[picture.blocks(merge) :]
        else:
            length = len(list(itertools.takewhile(lambda kind: kind == 0, types)))
            parts.append(length)
            types = types[length:]
    return parts


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["images", "batch", "video"])
def test_reference_positions_equal_those_of_transformers(conformance, model, name):
    case = dict(np.load(conformance / "qwen_vl" / model / f"case_{name}.npz"))
    rules = {"position_ids": "extent"} | ({"position_ids_classic": "largest"} if "position_ids_classic" in case else {})
    assert len(rules) == 1 + (model == "qwen2_5_vl" and name == "video")
    for row, mask in enumerate(case["attention_mask"]):
        parts = parts_of(case, row, 2, model == "qwen2_5_vl")
        assert sum(isinstance(part, Picture) for part in parts) > (name != "batch")
        for key, rule in rules.items():
            found, following = reference_layout.positions(parts, 2, 2, rule)
            expected = case[key][:, row, mask == 1]
            np.testing.assert_array_equal(np.transpose(found), expected)
            if key == "position_ids":
                assert following - mask.sum() == case["rope_deltas"][row, 0]
        if len(rules) == 2:
            classic, extent = (reference_layout.positions(parts, 2, 2, rule)[0] for rule in ("largest", "extent"))
            assert classic != extent  # the fixture tells the rules apart


@pytest.mark.parametrize("model", ["qwen3_vl", "qwen2_5_vl"])
def test_reference_patch_order_equals_that_of_transformers(conformance, model):
    """The rotary angles of the tower, and what its first block receives: embeddings by position or in window order."""
    folder = conformance / "qwen_vl" / model
    case = np.load(folder / "case_images.npz")
    pictures = [Picture(*grid) for grid in case["image_grid_thw"].tolist()]
    patches = [p for picture in pictures for block in reference_layout.block_patches(picture, 2) for p in block]
    quarter = case["out_vit_rope_cos"].shape[-1] // 4
    inverse = 10000.0 ** (-np.arange(quarter) / quarter)
    angles = np.array([[*(patch.row * inverse), *(patch.column * inverse)] for patch in patches])
    order = np.arange(len(patches))
    if model == "qwen3_vl":
        _, params = import_hf(folder)
        table = np.asarray(params["vision"]["pos_embed"]["embedding"]).reshape(7, 7, -1)
        owners = [picture for picture in pictures for _ in range(picture.blocks(2) * 4)]
        added = [reference_layout.interpolated(table, patch, owner) for patch, owner in zip(patches, owners)]
        np.testing.assert_allclose(case["out_vit_block0_in"], case["out_vit_patch_embed"] + added, rtol=0, atol=2e-6)
    else:
        blocks, before = [], 0
        for picture in pictures:
            found = reference_layout.windows(picture, 2, 2)
            blocks += [before + block for window in found for block in window]
            before += picture.blocks(2)
        order = np.array([block * 4 + i for block in blocks for i in range(4)])
        assert (order != np.sort(order)).any()
        np.testing.assert_array_equal(case["out_vit_block0_in"], case["out_vit_patch_embed"][order])
    cos = np.cos(np.concatenate([angles, angles], axis=1))
    assert np.abs(case["out_vit_rope_cos"] - cos).max() < 1e-5


# ------------------------------------------------------------------------------------------ random batches

SIZES = ((1, 1), (1, 2), (2, 2), (2, 3), (3, 5), (4, 4), (5, 1), (1, 9), (7, 3), (4, 6))  # in merged patches


def random_config(rng: np.random.Generator) -> QwenVLConfig:
    """A config of one of the families with tiny patches; rows may hold videos or not."""
    windowed = rng.random() < 0.5
    base = get_preset("nano-qwen2.5" if windowed else "nano")
    merge = int(rng.choice([2, 2, 3]))
    changes = {"patch_size": 2, "merge_size": merge, "video": bool(rng.random() < 0.6)}
    if windowed:
        changes |= {
            "attention_window": 2 * merge * int(rng.integers(1, 5)),
            "tokens_per_second": int(rng.integers(1, 5)),
        }
    else:
        changes |= {"num_position_embeddings": int(rng.integers(1, 14)) ** 2}
        if rng.random() < 0.4:
            changes["window"] = 36 * merge**2
    vision = dataclasses.replace(base.vision, **changes)
    rule = str(rng.choice(["largest", "extent"]))
    return dataclasses.replace(base, vision=vision, video_positions=rule)


def random_picture(rng: np.random.Generator, config: QwenVLConfig, video: bool) -> Picture:
    merge = config.vision.merge_size
    rows, columns = (int(n) * merge for n in SIZES[rng.integers(len(SIZES))])
    if not video or config.vision.kind == "qwen3_vl":
        return Picture(1, rows, columns)
    return Picture(int(rng.integers(1, 5)), rows, columns, float(rng.choice([0.3, 0.5, 1.0, 1.13, 4.0])))


class Member(NamedTuple):
    """An example, the parts that it was made of (numbers of text tokens, pictures), and which of them are videos."""

    example: layout.Example
    parts: list[int | Picture]
    videos: list[bool]

    def pictures(self) -> list[tuple[Picture, bool, layout.ImagePatches]]:
        shown = [(part, video) for part, video in zip(self.parts, self.videos) if isinstance(part, Picture)]
        return [(*pair, image) for pair, image in zip(shown, self.example.images)]


def random_patches(rng: np.random.Generator, picture: Picture, video: bool, first: int) -> layout.ImagePatches:
    """Patches that can be told apart: the first two bytes of each hold its number, counted from `first`."""
    count = picture.frames * picture.rows * picture.columns
    patches = rng.integers(0, 256, (count, 24 if video else 12), dtype=np.uint8)
    patches[:, 0], patches[:, 1] = np.arange(first, first + count) % 256, np.arange(first, first + count) // 256
    return layout.ImagePatches(patches, (picture.rows, picture.columns), picture.frames, video, picture.seconds)


def random_member(rng: np.random.Generator, config: QwenVLConfig, first: int) -> Member:
    """Texts, images and videos in turn, the patches numbered from `first`."""
    vision = config.vision
    ids: list[int] = []
    images: list[layout.ImagePatches] = []
    parts: list[int | Picture] = [0]
    videos = [False]

    def text(tokens: list[int]) -> None:
        ids.extend(tokens)
        if isinstance(parts[-1], Picture):
            parts.append(0)
            videos.append(False)
        parts[-1] += len(tokens)

    def words() -> list[int]:
        return rng.integers(0, 900, rng.integers(1, 6)).tolist()

    text(words())
    for _ in range(rng.integers(0, 4)):
        video = vision.video and bool(rng.random() < 0.5)
        picture = random_picture(rng, config, video)
        # A Qwen3-VL video is several of one size, each behind its time as text.
        for _ in range(int(rng.integers(1, 4)) if video and vision.kind == "qwen3_vl" else 1):
            text([*(words() if video else []), config.vision_start_token_id])
            parts.append(picture)
            videos.append(video)
            pad = config.video_token_id if video else config.image_token_id
            ids.extend([pad] * picture.blocks(vision.merge_size))
            images.append(random_patches(rng, picture, video, first))
            first += len(images[-1].patches)
            text([config.vision_end_token_id])
    example = layout.Example(np.array(ids, np.int32), np.zeros(len(ids), np.float32), tuple(images))
    return Member(example, parts, videos)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row that was laid out, and what was put into it.

    Attributes:
      slots: where the patch of each number lies.
    """

    config: QwenVLConfig
    members: list[Member]
    batch: dict[str, np.ndarray]
    slots: dict[int, int]

    def pictures(self) -> Iterator[tuple[int, Picture, bool, layout.ImagePatches]]:
        """The number of its first patch, and the picture, in order."""
        first = 0
        for member in self.members:
            for picture, video, image in member.pictures():
                yield first, picture, video, image
                first += len(image.patches)


def random_row(rng: np.random.Generator) -> Row:
    config = random_config(rng)
    vision = config.vision
    members: list[Member] = []
    for _ in range(rng.integers(1, 4)):
        first = sum(member.example.patch_count for member in members)
        members.append(random_member(rng, config, first))
    examples = [member.example for member in members]
    need = sum(layout.patch_slots(image, vision) for example in examples for image in example.images)
    unit = max(vision.window, (max(vision.window_side, 1) * vision.merge_size) ** 2)
    budget = (need * (2 if vision.window else 1) // unit + 2) * unit  # windows are filled by half or better
    length = sum(len(example.tokens) for example in examples) + 3
    batch = {name: array[0] for name, array in layout.lay_out_rows([examples], config, length, budget).items()}
    used = np.flatnonzero(batch["patch_segment_ids"])
    numbers = batch["patches"][used, 0] + 256 * batch["patches"][used, 1].astype(int)
    return Row(config, members, batch, dict(zip(numbers.tolist(), used.tolist())))


def travelling(patch: np.ndarray, video: bool, config: QwenVLConfig) -> np.ndarray:
    """The columns of a patch on their way to the model: those of an image once per frame where rows may hold videos."""
    if video or not config.vision.video:
        return patch
    channels = [patch[channel * 4 : channel * 4 + 4] for channel in range(config.vision.channels)]
    return np.concatenate([channel for channel in channels for _ in range(config.vision.temporal_patch_size)])


def check_patches(row: Row, rng: np.random.Generator) -> None:
    """Every patch lies in one slot, with its pixels, its coordinates, the embedding of its position and its frame."""
    batch, vision = row.batch, row.config.vision
    assert len(row.slots) == (batch["patch_segment_ids"] > 0).sum()
    assert len(row.slots) == sum(member.example.patch_count for member in row.members)
    table = rng.standard_normal((vision.table_side, vision.table_side, 5))
    frames: dict[tuple[int, int], int] = {}
    for first, picture, video, image in row.pictures():
        patches = [patch for block in reference_layout.block_patches(picture, vision.merge_size) for patch in block]
        for at, patch in enumerate(patches):
            slot = row.slots[first + at]
            segment = int(batch["patch_segment_ids"][slot])
            assert frames.setdefault((first, patch.frame), segment) == segment
            assert batch["patch_coords"][slot].tolist() == [patch.row, patch.column]
            assert (batch["patches"][slot] == travelling(image.patches[at], video, row.config)).all()
            if vision.num_position_embeddings:
                corners = table.reshape(-1, 5)[batch["pos_index"][slot]]
                embedding = (batch["pos_weight"][slot][:, None] * corners).sum(axis=0)
                assert np.abs(embedding - reference_layout.interpolated(table, patch, picture)).max() < 2e-5
    # Frames never see each other: as many segments as frames.
    assert sorted(frames.values()) == list(range(1, len(frames) + 1))
    unused = batch["patch_segment_ids"] == 0
    assert not batch["patches"][unused].any() and not batch["patch_coords"][unused].any()


def check_order(row: Row) -> None:
    """Slots follow the order of the reference; every attention window has a run of slots to itself."""
    vision, area = row.config.vision, row.config.vision.merge_size**2
    side, expected, runs = vision.window_side, [], 0
    for first, picture, _, _ in row.pictures():
        blocks = list(range(picture.blocks(vision.merge_size)))
        for window in reference_layout.windows(picture, vision.merge_size, side) if side else [blocks]:
            numbers = [first + block * area + i for block in window for i in range(area)]
            expected += numbers
            size = side**2 * area if side else vision.window
            if size:
                assert len({row.slots[number] // size for number in numbers}) == 1
                runs += 1
    assert sorted(row.slots, key=row.slots.__getitem__) == expected
    if side:
        assert len({slot // (side**2 * area) for slot in row.slots.values()}) == runs


def check_tokens(row: Row) -> None:
    """Positions, segments, and that every pad receives the feature of its own block."""
    batch, vision, area = row.batch, row.config.vision, row.config.vision.merge_size**2
    visual = np.full(len(batch["tokens"]), -1)
    token = first = 0
    for segment, member in enumerate(row.members, start=1):
        rule = row.config.video_positions
        found = reference_layout.positions(member.parts, vision.merge_size, vision.tokens_per_second, rule)
        span = slice(token, token + len(member.example.tokens))
        np.testing.assert_array_equal(batch["positions"][span], found[0])
        assert (batch["segment_ids"][span] == segment).all()
        budget = len(batch["patch_segment_ids"])
        alone = layout.lay_out_prompts([member.example], row.config, len(member.example.tokens), budget)
        assert alone["next_position"].tolist() == [found[1]]
        for part in member.parts:
            if isinstance(part, int):
                token += part
                continue
            for _ in range(part.blocks(vision.merge_size)):
                slots = [row.slots[first + i] for i in range(area)]
                assert slots == list(range(slots[0], slots[0] + area)) and slots[0] % area == 0
                visual[token] = slots[0] // area
                token, first = token + 1, first + area
    np.testing.assert_array_equal(batch["visual_index"], visual)
    assert not batch["segment_ids"][token:].any() and token == len(visual) - 3


@pytest.mark.parametrize("seed", range(300))
def test_host_metadata_equals_the_reference(seed):
    rng = np.random.default_rng(seed)
    row = random_row(rng)
    check_patches(row, rng)
    check_order(row)
    check_tokens(row)


def test_the_random_rows_have_what_they_should():
    """Of the 300: images, videos of both families, several examples in a row, and windows cut short at an edge."""
    rows = [random_row(np.random.default_rng(seed)) for seed in range(300)]
    videos = [row.config.vision.kind for row in rows if any(video for _, _, video, _ in row.pictures())]
    assert min(videos.count(kind) for kind in ("qwen3_vl", "qwen2_5_vl")) > 30
    assert sum(len(row.members) > 1 for row in rows) > 100
    ragged = 0
    for row in rows:
        side = row.config.vision.window_side * row.config.vision.merge_size
        ragged += any(side and (p.rows % side or p.columns % side) for _, p, _, _ in row.pictures())
    assert ragged > 50
