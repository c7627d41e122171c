"""From a screenshot to patches: resize to a multiple of the patch grid, cut into patches in merge order.

Everything stays uint8 on the host; normalisation happens on the device. Sources: the image processor published with
Qwen2.5-VL and Qwen3-VL (its rules are restated here), Pillow for the resampling. What is not resized equals the
published processor exactly; what is resized equals its Pillow version, from which its torchvision version differs by
0 to 2 grey levels on ordinary screens (up to 12 where noise shrinks).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gui_owl_jax.agent.errors import CheckpointError, ConfigError, DataError
from gui_owl_jax.hf import files
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.layout import ImagePatches

_MAX_ASPECT = 200


@dataclasses.dataclass(frozen=True)
class Family:
    """What the published processors of one model family have in common.

    Attributes:
      processor: their processor_class.
      image_processor, video_processor: their image_processor_type and video_processor_type.
      min_pixels, max_pixels: their bounds on the area of an image.
      named_bounds: preprocessor_config.json names the bounds min_pixels and max_pixels, not size.
    """

    processor: str
    image_processor: str
    video_processor: str
    min_pixels: int
    max_pixels: int
    named_bounds: bool


FAMILIES = {
    "qwen3_vl": Family(
        "Qwen3VLProcessor", "Qwen2VLImageProcessorFast", "Qwen3VLVideoProcessor", 65_536, 16_777_216, named_bounds=False
    ),
    "qwen2_5_vl": Family(
        "Qwen2_5_VLProcessor", "Qwen2VLImageProcessor", "Qwen2VLVideoProcessor", 3_136, 12_845_056, named_bounds=True
    ),
}


@dataclasses.dataclass(frozen=True)
class ImageConfig:
    """How screenshots become patches; the defaults are those of Qwen3-VL.

    Attributes:
      patch_size: side of a patch, in pixels.
      merge_size: patches per side of the square that becomes one token of the language model.
      temporal_patch_size: frames per patch; an image is repeated that often.
      min_pixels, max_pixels: bounds on height * width after resizing, in pixels.
      mean, std: of each colour channel on the 0..1 scale, applied on the device.
      family: one of `FAMILIES`; decides on the form of the files and the rules for videos.
    """

    patch_size: int = 16
    merge_size: int = 2
    temporal_patch_size: int = 2
    min_pixels: int = 65536
    max_pixels: int = 16777216
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    family: str = "qwen3_vl"

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigError(f"image family {self.family!r} is none of {', '.join(FAMILIES)}")

    @classmethod
    def for_model(
        cls, config: QwenVLConfig, *, min_pixels: int | None = None, max_pixels: int | None = None
    ) -> ImageConfig:
        """The image processing that a model's config asks for.

        Args:
          config: of the model.
          min_pixels, max_pixels: bounds on the area of a screenshot; None: the published ones of the model's family.
        """
        vision, family = config.vision, FAMILIES[config.vision.kind]
        return cls(
            patch_size=vision.patch_size,
            merge_size=vision.merge_size,
            temporal_patch_size=vision.temporal_patch_size,
            min_pixels=family.min_pixels if min_pixels is None else min_pixels,
            max_pixels=family.max_pixels if max_pixels is None else max_pixels,
            mean=_three(config.image_mean),
            std=_three(config.image_std),
            family=vision.kind,
        )

    @property
    def factor(self) -> int:
        """Height and width are multiples of this many pixels after resizing."""
        return self.patch_size * self.merge_size

    def tokens(self, height: int, width: int) -> int:
        """Number of tokens of the language model that a screenshot of this size takes."""
        resized = smart_resize(height, width, self.factor, self.min_pixels, self.max_pixels)
        return resized[0] // self.factor * (resized[1] // self.factor)

    def to_json(self) -> dict[str, Any]:
        """The content of preprocessor_config.json, with the fields of the family's published checkpoints."""
        family = FAMILIES[self.family]
        classes = {"processor_class": family.processor, "image_processor_type": family.image_processor}
        return bounds_to_json(family, self.min_pixels, self.max_pixels) | self.geometry_to_json() | classes

    def geometry_to_json(self) -> dict[str, Any]:
        """The fields that images and videos share."""
        return {
            "patch_size": self.patch_size,
            "temporal_patch_size": self.temporal_patch_size,
            "merge_size": self.merge_size,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "preprocessor_config.json") -> ImageConfig:
        """Reads preprocessor_config.json, in the Qwen3-VL form (`size`) or the Qwen2.5-VL form (`min_pixels`).

        The family is the one whose processor_class the file names; without a known name, the one whose form it has.

        Raises:
          CheckpointError: a field is missing or malformed; the message names `where` and the field.
        """
        with malformed_fields(where):
            smallest, largest = bounds_from_json(content)
            named = [name for name, family in FAMILIES.items() if family.processor == content.get("processor_class")]
            return cls(
                patch_size=int(content["patch_size"]),
                merge_size=int(content["merge_size"]),
                temporal_patch_size=int(content["temporal_patch_size"]),
                min_pixels=smallest,
                max_pixels=largest,
                mean=_three(content["image_mean"]),
                std=_three(content["image_std"]),
                family=named[0] if named else "qwen3_vl" if content.get("min_pixels") is None else "qwen2_5_vl",
            )

    @classmethod
    def load(cls, folder: str | os.PathLike) -> ImageConfig:
        """Reads what a checkpoint folder says of images.

        That is preprocessor_config.json, or the part of processor_config.json in which transformers 5 writes the same.
        """
        content, where = read_part(Path(folder), "image_processor", "preprocessor_config.json")
        return cls.from_json(content, where)


def bounds_to_json(family: Family, min_pixels: int, max_pixels: int) -> dict[str, Any]:
    """The bounds on an area, in the form of the family's files."""
    if family.named_bounds:
        return {"min_pixels": min_pixels, "max_pixels": max_pixels}
    return {"size": {"longest_edge": max_pixels, "shortest_edge": min_pixels}}


def bounds_from_json(content: Mapping[str, Any]) -> tuple[int, int]:
    """Reads the bounds on an area in either form; in spite of its names `size` holds areas too."""
    size = content.get("size") or {}
    smallest, largest = content.get("min_pixels"), content.get("max_pixels")
    return (
        int(size["shortest_edge"] if smallest is None else smallest),
        int(size["longest_edge"] if largest is None else largest),
    )


def read_part(folder: Path, part: str, name: str) -> tuple[dict[str, Any], str]:
    """Reads what a checkpoint folder says of one kind of input.

    Args:
      folder: of the checkpoint.
      part: the key under which the processor_config.json of transformers 5 holds it; that file goes first, as there.
      name: the file of its own that published checkpoints have.

    Returns:
      the content with the processor_class, and where it was found.

    Raises:
      CheckpointError: there is neither, or one is damaged.
    """
    shared = folder / "processor_config.json"
    if shared.exists():
        content = files.read_json(shared)
        if isinstance(content.get(part), dict):
            return {"processor_class": content.get("processor_class")} | content[part], f"{shared}: {part}"
    return files.read_json(folder / name), str(folder / name)


@contextlib.contextmanager
def malformed_fields(where: str) -> Iterator[None]:
    """Turns what reading a JSON object's fields raises into a CheckpointError that names `where` and the field."""
    try:
        yield
    except KeyError as e:
        raise CheckpointError(f"{where} lacks the field {e}") from e
    except (TypeError, ValueError, AttributeError, ConfigError) as e:
        raise CheckpointError(f"{where} has a malformed field: {e}") from e


def _three(values: Any) -> tuple[float, float, float]:
    r, g, b = (float(v) for v in values)
    return r, g, b


def smart_resize(
    height: int,
    width: int,
    factor: int,
    min_pixels: int,
    max_pixels: int,
    frames: int = 1,
    temporal_patch_size: int = 1,
) -> tuple[int, int]:
    """The size to which a height x width image is resized: multiples of `factor`, about the same shape.

    Each side goes to the nearest multiple (halves to the even one); if the area then leaves [min_pixels, max_pixels],
    both sides are scaled from the original size so that it fits. Example: 1080 x 1920 with factor 32 -> (1088, 1920).

    Args:
      height, width: in pixels.
      factor: patch size times merge size.
      min_pixels, max_pixels: bounds on the area, that of all frames together.
      frames: of a video whose frames share the bounds.
      temporal_patch_size: to the nearest multiple of it `frames` is rounded, as the sides are.

    Raises:
      DataError: a side is not positive, or one is more than 200 times the other.
    """
    if min(height, width) < 1:
        raise DataError(f"image size {height} x {width}: both sides must be at least 1 pixel")
    if max(height, width) / min(height, width) > _MAX_ASPECT:
        raise DataError(f"image size {height} x {width}: one side is more than {_MAX_ASPECT} times the other")
    rows, cols = round(height / factor), round(width / factor)
    area = round(frames / temporal_patch_size) * temporal_patch_size * rows * cols * factor**2
    if area > max_pixels:
        shrink = math.sqrt(frames * height * width / max_pixels)
        rows = max(1, math.floor(height / shrink / factor))
        cols = max(1, math.floor(width / shrink / factor))
    elif area < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        rows = math.ceil(height * grow / factor)
        cols = math.ceil(width * grow / factor)
    return rows * factor, cols * factor


def resize(image: np.ndarray, config: ImageConfig) -> np.ndarray:
    """Resizes uint8 [H, W, 3] to the size of `smart_resize`, bicubic with antialiasing; unchanged where it fits.

    Raises:
      DataError: `image` is not uint8 [H, W, 3], or its shape is too elongated.
    """
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        found = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise DataError(f"a screenshot must be a uint8 array [height, width, 3], got {found}")
    size = smart_resize(image.shape[0], image.shape[1], config.factor, config.min_pixels, config.max_pixels)
    return resize_to(image, size)


def resize_to(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes uint8 [H, W, 3] to (height, width), bicubic with antialiasing; unchanged where it fits."""
    if size == image.shape[:2]:
        return image
    return np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BICUBIC))


def patchify(image: np.ndarray, config: ImageConfig) -> ImagePatches:
    """Cuts uint8 [gh*p, gw*p, 3] into patches [gh*gw, 3*p*p] in merge order.

    The m*m patches of one token are adjacent; with m = 2 a 2 x 4 grid of patches (row, column) comes as
    00 01 10 11 | 02 03 12 13. Within a patch the column index is (channel*p + y)*p + x.

    Raises:
      DataError: a side is no multiple of patch size times merge size (`resize` first).
    """
    height, width, channels = image.shape
    p, m = config.patch_size, config.merge_size
    if height % config.factor or width % config.factor:
        raise DataError(f"image {height} x {width} is no multiple of {config.factor} pixels; resize it first")
    gh, gw = height // p, width // p
    # Channels first before the big shuffle: the innermost runs are then p bytes long instead of one.
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).reshape(channels, gh // m, m, p, gw // m, m, p)
    patches = planes.transpose(1, 4, 2, 5, 0, 3, 6).reshape(gh * gw, channels * p * p)
    return ImagePatches(patches=patches, grid=(gh, gw))


def image_patches(image: np.ndarray, config: ImageConfig) -> ImagePatches:
    """Resizes a screenshot uint8 [H, W, 3] and cuts it into patches."""
    return patchify(resize(image, config), config)


def pixel_values(image: ImagePatches, config: ImageConfig) -> np.ndarray:
    """The array that `transformers` feeds its model: float32 [gt*gh*gw, 3*tp*p*p], normalised.

    An image's patches are repeated for each of the tp frames, a video's hold them already. The library's own models
    normalise on the device; this is for comparison and for serving other programs.
    """
    rows, pp = image.patches.shape[0], config.patch_size**2
    frames = image.patches.reshape(rows, 3, -1, pp).astype(np.float32) / np.float32(255)
    mean, std = (np.asarray(v, np.float32).reshape(3, 1, 1) for v in (config.mean, config.std))
    values = (frames - mean) / std
    return np.repeat(values, 1 if image.video else config.temporal_patch_size, axis=2).reshape(rows, -1)
