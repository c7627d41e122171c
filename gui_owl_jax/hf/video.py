"""From a video to patches: choose frames, resize them, cut them in merge order with real frames on the temporal axis.

The two families differ: Qwen3-VL tells the time as text in front of every temporal patch and bounds the area of all
frames together; Qwen2.5-VL tells it by rotary positions and bounds the area of each frame. Sources: the video
processors of transformers 5.24, whose rules are restated here (but for a cap on the pixels of each frame, which they do
not apply by default); Pillow for the resampling, which is as exact as that of images.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gui_owl_jax.agent.errors import CheckpointError, ConfigError, DataError
from gui_owl_jax.agent.prompts import VISION_END, VISION_START, Special
from gui_owl_jax.hf import files
from gui_owl_jax.hf.images import (
    FAMILIES,
    ImageConfig,
    bounds_from_json,
    bounds_to_json,
    malformed_fields,
    read_part,
    resize_to,
    smart_resize,
)
from gui_owl_jax.models.layout import ImagePatches

FILE = "video_preprocessor_config.json"
# Qwen2.5-VL publishes no such file; these are the bounds that its processor has by itself, per frame.
_BOUNDS = {"qwen3_vl": (4_096, 25_165_824), "qwen2_5_vl": (128 * 28**2, 768 * 28**2)}
_SAMPLING = ("fps", "min_frames", "max_frames")


@dataclasses.dataclass(frozen=True)
class VideoConfig:
    """How videos become patches, beside what an `ImageConfig` says of both; the defaults are those of Qwen3-VL.

    Attributes:
      min_pixels, max_pixels: bounds on frames * height * width after resizing (Qwen3-VL), or on the height * width of
        each frame (Qwen2.5-VL).
      fps: frames to look at per second.
      min_frames, max_frames: bounds on how many are looked at; a shorter video gives all it has.
      outer_pair: the layout of Qwen3-VL prompts. The chat template writes one pair of vision_start and vision_end
        around a video, and every temporal patch has a pair of its own. transformers 4.57, with which the checkpoints
        were published, drops the outer pair (False); transformers 5 keeps it (True).
    """

    min_pixels: int = 4_096
    max_pixels: int = 25_165_824
    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    outer_pair: bool = False

    def __post_init__(self) -> None:
        if self.fps <= 0:
            raise ConfigError(f"video fps is {self.fps}, must be above 0")
        if not 1 <= self.min_frames <= self.max_frames:
            raise ConfigError(f"video min_frames {self.min_frames} must lie in [1, max_frames = {self.max_frames}]")

    @classmethod
    def for_family(cls, family: str) -> VideoConfig:
        """The published settings of one of the `images.FAMILIES`."""
        smallest, largest = _BOUNDS[family]
        return cls(min_pixels=smallest, max_pixels=largest)

    def to_json(self, images: ImageConfig) -> dict[str, Any]:
        """The content of video_preprocessor_config.json.

        For Qwen3-VL that of the published checkpoints, which leaves out settings that are the processor's own.
        Qwen2.5-VL's processor would not choose frames by itself, so that its file has to say how.
        """
        family, sampling = FAMILIES[images.family], {name: getattr(self, name) for name in _SAMPLING}
        if images.family == "qwen3_vl":
            usual = VideoConfig()
            sampling = {name: value for name, value in sampling.items() if value != getattr(usual, name)}
        else:
            sampling["do_sample_frames"] = True
        classes = {"processor_class": family.processor, "video_processor_type": family.video_processor}
        bounds = bounds_to_json(family, self.min_pixels, self.max_pixels)
        return bounds | images.geometry_to_json() | sampling | classes

    @classmethod
    def from_json(cls, content: Mapping[str, Any], images: ImageConfig, where: str = FILE) -> VideoConfig:
        """Reads video_preprocessor_config.json.

        Raises:
          CheckpointError: a field is missing, malformed, or says another patch than `images`; the message names
            `where` and the field.
        """
        with malformed_fields(where):
            for name, value in images.geometry_to_json().items():
                if content[name] != value:
                    raise CheckpointError(f"{where}: {name} is {content[name]}, for images it is {value}")
            smallest, largest = bounds_from_json(content)
            usual = cls.for_family(images.family)
            found = {name: content.get(name) for name in _SAMPLING}
            chosen = {name: getattr(usual, name) if value is None else value for name, value in found.items()}
            return cls(smallest, largest, float(chosen["fps"]), int(chosen["min_frames"]), int(chosen["max_frames"]))

    @classmethod
    def load(cls, folder: str | os.PathLike, images: ImageConfig) -> VideoConfig:
        """Reads what a checkpoint folder says of videos; where it says nothing, the settings are the published ones."""
        path = Path(folder)
        nested = path / "processor_config.json"
        if not (path / FILE).exists() and not (nested.exists() and "video_processor" in files.read_json(nested)):
            return cls.for_family(images.family)
        content, where = read_part(path, "video_processor", FILE)
        return cls.from_json(content, images, where)


@dataclasses.dataclass(frozen=True, eq=False)
class Video:
    """The frames of a video.

    Attributes:
      frames: uint8 [F, H, W, 3].
      fps: frames per second of the source; the published processors take 24 where it is unknown.
      indices: which frames of the source these are, ascending; None: they are the source, from which the frames to
        look at are still to be chosen. To decode only those, ask `sample_frames`.
      total: frames of the source; needed beside `indices`.
    """

    frames: np.ndarray
    fps: float = 24.0
    indices: tuple[int, ...] | None = None
    total: int | None = None

    def __post_init__(self) -> None:
        frames = self.frames
        if not isinstance(frames, np.ndarray) or frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
            found = f"{frames.dtype} {frames.shape}" if isinstance(frames, np.ndarray) else type(frames).__name__
            raise DataError(f"a video must be a uint8 array [frames, height, width, 3], got {found}")
        if not self.fps > 0:
            raise DataError(f"video fps is {self.fps}, must be above 0")
        if (self.indices is None) != (self.total is None):
            raise DataError("a video has indices and total, or neither")
        if self.indices is not None and self.total is not None:
            ordered = all(a < b for a, b in zip(self.indices, self.indices[1:]))
            inside = bool(self.indices) and self.indices[0] >= 0 and self.indices[-1] < self.total
            if len(self.indices) != len(frames) or not ordered or not inside:
                raise DataError(f"video indices must name {len(frames)} of {self.total} frames in order")


def sample_frames(total: int, fps: float, images: ImageConfig, config: VideoConfig) -> np.ndarray:
    """Chooses the frames to look at: int64 [n], ascending indices into a video of `total` frames.

    `config.fps` of them per second, within min_frames and max_frames, never more than there are. Qwen3-VL spreads them
    from the first frame to the last. Qwen2.5-VL takes a multiple of the temporal patch size and steps evenly from the
    first one. Three seconds at 10 frames per second, two wanted per second:

      Qwen3-VL     0 6 12 17 23 29
      Qwen2.5-VL   0 5 10 15 20 25

    Raises:
      DataError: there are fewer frames than a temporal patch has; one frame is an image.
    """
    tp = images.temporal_patch_size
    if total < tp:
        raise DataError(f"a video of {total} frames has no temporal patch of {tp}; show a single frame as an image")
    wanted = total / fps * config.fps
    if images.family == "qwen3_vl":
        count = min(max(int(wanted), config.min_frames), config.max_frames, total)
        return np.linspace(0, total - 1, count).round().astype(np.int64)
    most = max(min(config.max_frames, total) // tp * tp, tp)
    count = max(math.floor(min(max(wanted, config.min_frames), most) / tp) * tp, tp)
    # Exact. The published processor counts in float32 and takes a neighbour now and then in videos of ten thousands.
    return np.arange(count) * total // count


def video_size(frames: int, height: int, width: int, images: ImageConfig, config: VideoConfig) -> tuple[int, int]:
    """The (height, width) to which the frames of a video are resized, multiples of patch size times merge size.

    Qwen2.5-VL treats each frame as an image. Qwen3-VL holds the sum of the areas within the bounds; a frame smaller
    than one merged patch is enlarged first (transformers 4.57 refuses such a video, 5 does this).

    Raises:
      DataError: a side is not positive, or one is more than 200 times the other.
    """
    factor, tp = images.factor, images.temporal_patch_size
    if images.family == "qwen2_5_vl":
        return smart_resize(height, width, factor, config.min_pixels, config.max_pixels)
    if 0 < min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    return smart_resize(height, width, factor, config.min_pixels, config.max_pixels, frames, tp)


def patchify_frames(frames: np.ndarray, images: ImageConfig) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Cuts uint8 [F, gh*p, gw*p, 3] into patches [gt*gh*gw, 3*tp*p*p], temporal patch by temporal patch in merge order.

    Where F is no multiple of tp the last frame is repeated. The column index is ((channel*tp + t)*p + y)*p + x.

    Returns:
      the patches and (gt, gh, gw).

    Raises:
      DataError: a side is no multiple of patch size times merge size.
    """
    p, m, tp = images.patch_size, images.merge_size, images.temporal_patch_size
    count, height, width, channels = frames.shape
    if height % images.factor or width % images.factor:
        raise DataError(f"frames {height} x {width} are no multiple of {images.factor} pixels; resize them first")
    padded = np.concatenate([frames, np.repeat(frames[-1:], -count % tp, axis=0)])
    gt, gh, gw = len(padded) // tp, height // p, width // p
    planes = np.ascontiguousarray(padded.transpose(0, 3, 1, 2))
    planes = planes.reshape(gt, tp, channels, gh // m, m, p, gw // m, m, p)
    patches = planes.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(gt * gh * gw, channels * tp * p * p)
    return patches, (gt, gh, gw)


def timestamps(indices: Sequence[int] | np.ndarray, fps: float, temporal_patch_size: int) -> list[float]:
    """The time of each temporal patch in seconds: the mean of its first and its last frame's.

    Frames 0, 1, 2 of a video with 2 frames per second: (0 + 0.5) / 2 and, the last frame repeated, 1.
    """
    times = [int(index) / fps for index in indices]
    times += times[-1:] * (-len(times) % temporal_patch_size)
    ends = zip(times[::temporal_patch_size], times[temporal_patch_size - 1 :: temporal_patch_size])
    return [(first + last) / 2 for first, last in ends]


def choose_frames(video: Video, images: ImageConfig, config: VideoConfig) -> Video:
    """Returns the video with only the frames to look at; unchanged where they were chosen before."""
    if video.indices is not None:
        return video
    total = len(video.frames)
    indices = sample_frames(total, video.fps, images, config)
    return Video(video.frames[indices], video.fps, tuple(indices.tolist()), total)


def video_patches(video: Video, images: ImageConfig, config: VideoConfig) -> tuple[ImagePatches, ...]:
    """Chooses, resizes and cuts the frames of a video.

    Returns:
      for Qwen3-VL one `ImagePatches` per temporal patch; for Qwen2.5-VL a single one, with the seconds from one
      temporal patch to the next.

    Raises:
      DataError: the video has too few frames or too elongated ones.
    """
    chosen = choose_frames(video, images, config)
    count, height, width = chosen.frames.shape[:3]
    size = video_size(count, height, width, images, config)
    patches, (gt, gh, gw) = patchify_frames(np.stack([resize_to(frame, size) for frame in chosen.frames]), images)
    if images.family == "qwen2_5_vl":
        sampled_fps = count / _total(chosen) * chosen.fps
        seconds = images.temporal_patch_size / sampled_fps
        return (ImagePatches(patches, (gh, gw), frames=gt, video=True, seconds_per_patch=seconds),)
    return tuple(ImagePatches(part, (gh, gw), video=True) for part in np.split(patches, gt))


def video_pieces(video: Video, images: ImageConfig, config: VideoConfig) -> list[str | Special | ImagePatches]:
    """What stands in a prompt for a video: text, special tokens, and patches in the place of their pads.

    Qwen3-VL, two temporal patches, without and with `VideoConfig.outer_pair` (S and E are vision_start, vision_end):

      "<0.2 seconds>" S patches E "<1.2 seconds>" S patches E
      S "<0.2 seconds>" S patches E "<1.2 seconds>" S patches E E

    Qwen2.5-VL: S patches E, however long the video.
    """
    chosen = choose_frames(video, images, config)
    parts = video_patches(chosen, images, config)
    start, end = Special(VISION_START), Special(VISION_END)
    if images.family == "qwen2_5_vl":
        return [start, *parts, end]
    pieces: list[str | Special | ImagePatches] = []
    for time, part in zip(timestamps(chosen.indices or (), chosen.fps, images.temporal_patch_size), parts):
        pieces += [f"<{time:.1f} seconds>", start, part, end]
    return [start, *pieces, end] if config.outer_pair else pieces


def _total(video: Video) -> int:
    return len(video.frames) if video.total is None else video.total
