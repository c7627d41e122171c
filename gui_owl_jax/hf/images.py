"""From a screenshot to patches: resize to a multiple of the patch grid, cut into patches in merge order.

Everything stays uint8 on the host; normalisation happens on the device. Sources: the image processor published with
Qwen2-VL and Qwen3-VL (its rules are restated here), Pillow for the resampling.
"""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gui_owl_jax.agent.errors import CheckpointError, DataError
from gui_owl_jax.hf import files
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.layout import ImagePatches

_MAX_ASPECT = 200


@dataclasses.dataclass(frozen=True)
class ImageConfig:
    """How screenshots become patches; the defaults are those of Qwen3-VL.

    Attributes:
      patch_size: side of a patch, in pixels.
      merge_size: patches per side of the square that becomes one token of the language model.
      temporal_patch_size: frames per patch; an image is repeated that often.
      min_pixels, max_pixels: bounds on height * width after resizing, in pixels.
      mean, std: of each colour channel on the 0..1 scale, applied on the device.
    """

    patch_size: int = 16
    merge_size: int = 2
    temporal_patch_size: int = 2
    min_pixels: int = 65536
    max_pixels: int = 16777216
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @classmethod
    def for_model(cls, config: QwenVLConfig, *, min_pixels: int = 65536, max_pixels: int = 16777216) -> ImageConfig:
        """The image processing that a model's config asks for, with bounds on the area of a screenshot."""
        vision = config.vision
        return cls(
            patch_size=vision.patch_size,
            merge_size=vision.merge_size,
            temporal_patch_size=vision.temporal_patch_size,
            min_pixels=min_pixels,
            max_pixels=max_pixels,
            mean=_three(config.image_mean),
            std=_three(config.image_std),
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
        """The content of preprocessor_config.json, with the fields of the published checkpoints."""
        return {
            "size": {"longest_edge": self.max_pixels, "shortest_edge": self.min_pixels},
            "patch_size": self.patch_size,
            "temporal_patch_size": self.temporal_patch_size,
            "merge_size": self.merge_size,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
            "processor_class": "Qwen3VLProcessor",
            "image_processor_type": "Qwen2VLImageProcessorFast",
        }

    @classmethod
    def from_json(cls, content: dict[str, Any], where: str = "preprocessor_config.json") -> ImageConfig:
        """Reads preprocessor_config.json, in the Qwen3-VL form (`size`) or the Qwen2.5-VL form (`min_pixels`).

        Raises:
          CheckpointError: a field is missing or malformed; the message names `where` and the field.
        """
        size = content.get("size") or {}
        try:
            return cls(
                patch_size=int(content["patch_size"]),
                merge_size=int(content["merge_size"]),
                temporal_patch_size=int(content["temporal_patch_size"]),
                min_pixels=int(content["min_pixels"] if "min_pixels" in content else size["shortest_edge"]),
                max_pixels=int(content["max_pixels"] if "max_pixels" in content else size["longest_edge"]),
                mean=_three(content["image_mean"]),
                std=_three(content["image_std"]),
            )
        except KeyError as e:
            raise CheckpointError(f"{where} lacks the field {e}") from e
        except (TypeError, ValueError) as e:
            raise CheckpointError(f"{where} has a malformed field: {e}") from e

    @classmethod
    def load(cls, folder: str | os.PathLike) -> ImageConfig:
        """Reads preprocessor_config.json of a checkpoint folder."""
        path = Path(folder) / "preprocessor_config.json"
        return cls.from_json(files.read_json(path), str(path))


def _three(values: Any) -> tuple[float, float, float]:
    r, g, b = (float(v) for v in values)
    return r, g, b


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """The size to which a height x width image is resized: multiples of `factor`, about the same shape.

    Each side goes to the nearest multiple (halves to the even one); if the area then leaves [min_pixels, max_pixels],
    both sides are scaled from the original size so that it fits. Example: 1080 x 1920 with factor 32 -> (1088, 1920).

    Args:
      height, width: in pixels.
      factor: patch size times merge size.
      min_pixels, max_pixels: bounds on the area.

    Raises:
      DataError: a side is not positive, or one is more than 200 times the other.
    """
    if min(height, width) < 1:
        raise DataError(f"image size {height} x {width}: both sides must be at least 1 pixel")
    if max(height, width) / min(height, width) > _MAX_ASPECT:
        raise DataError(f"image size {height} x {width}: one side is more than {_MAX_ASPECT} times the other")
    rows, cols = round(height / factor), round(width / factor)
    area = rows * cols * factor**2
    if area > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        rows = max(1, math.floor(height / shrink / factor))
        cols = max(1, math.floor(width / shrink / factor))
    elif area < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
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
    height, width = smart_resize(image.shape[0], image.shape[1], config.factor, config.min_pixels, config.max_pixels)
    if (height, width) == image.shape[:2]:
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


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
    """The array that `transformers` feeds its model: float32 [gh*gw, 3*tp*p*p], normalised, frames repeated.

    The library's own models normalise on the device; this is for comparison and for serving other programs.
    """
    rows, pp = image.patches.shape[0], config.patch_size**2
    channels = image.patches.reshape(rows, 3, 1, pp).astype(np.float32) / np.float32(255)
    mean, std = (np.asarray(v, np.float32).reshape(3, 1, 1) for v in (config.mean, config.std))
    return np.repeat((channels - mean) / std, config.temporal_patch_size, axis=2).reshape(rows, -1)
