"""Looking twice: a coarse point, then the same question about an enlarged crop around it.

GUI-Owl-1.5 reports grounding with such a refinement (arXiv 2602.16855), but its release does not call one, so the
settings are the caller's: published ones are a crop of 25 % or 50 % of each side shown at 1920x1080 (ClawGUI), and a
fixed crop of 1024x1024 pixels (ScreenSpot-Pro, ReGround).

The windows of crops have whole numbers; `targets` says how points are mapped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.dialects import Dialect
from gui_owl_jax.agent.errors import ConfigError, DataError, ParseError
from gui_owl_jax.evals.benchmark import Answerer, Look, Reply, Request
from gui_owl_jax.evals.targets import Point, Window, point_in_image, pointed_at


@dataclasses.dataclass(frozen=True)
class ZoomConfig:
    """How the second look is taken; exactly one of `ratio` and `size` is set.

    Attributes:
      ratio: width and height of the crop as a share of the image's, in (0, 1].
      size: (width, height) of the crop in pixels of the original image; a smaller image is shown as a whole.
      enlarged: (width, height) that the crop is resampled to, None to leave it as it is.
    """

    ratio: float | None = 0.5
    size: tuple[int, int] | None = None
    enlarged: tuple[int, int] | None = None

    def __post_init__(self):
        if (self.ratio is None) == (self.size is None):
            raise ConfigError(f"zoom: set one of ratio ({self.ratio}) and size ({self.size}), the other one to None")
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise ConfigError(f"zoom.ratio is {self.ratio}, must lie in (0, 1]")
        for name in ("size", "enlarged"):
            value = getattr(self, name)
            if value is not None and (len(value) != 2 or min(value) < 1):
                raise ConfigError(f"zoom.{name} is {value}, must be a width and a height in pixels")

    def crop_size(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) in pixels of the crop of an image of the given size, at least one pixel each."""
        wanted = self.size or (round(width * (self.ratio or 1)), round(height * (self.ratio or 1)))
        return max(1, min(wanted[0], width)), max(1, min(wanted[1], height))


@dataclasses.dataclass(frozen=True)
class Looked:
    """What came of one question.

    Attributes:
      looks: the calls in their order, () where one of them failed.
      failure: why, "" for not at all.
    """

    looks: tuple[Look, ...] = ()
    failure: str = ""


# Asks a batch of grounding questions; the second argument has the device family of each.
Looker = Callable[[Sequence[Request], Sequence[DeviceFamily]], list[Looked]]


def window_around(point: Point, crop: tuple[int, int], width: int, height: int) -> Window:
    """The window of `crop` = (width, height) pixels around a point, pushed back into the image at its border.

    The window keeps its size; the point is in its middle up to half a pixel, or as near to it as the border allows.

    Raises:
      DataError: the crop is larger than the image.
    """
    if crop[0] > width or crop[1] > height:
        raise DataError(f"a crop of {crop[0]}x{crop[1]} does not fit into an image of {width}x{height}")
    left = min(max(round(point[0] - crop[0] / 2), 0), width - crop[0])
    top = min(max(round(point[1] - crop[1] / 2), 0), height - crop[1])
    return float(left), float(top), float(left + crop[0]), float(top + crop[1])


def cut(image: np.ndarray, window: Window, enlarged: tuple[int, int] | None = None) -> np.ndarray:
    """The part of an image inside a window of whole pixels, resampled (bicubic) to (width, height) where given.

    Args:
      image: uint8 [H, W, 3].
      window: in pixels of the image.
      enlarged: size of the result.

    Returns:
      uint8 [h, w, 3].
    """
    left, top, right, bottom = (int(edge) for edge in window)
    crop = image[top:bottom, left:right]
    if enlarged is None:
        return crop
    return np.asarray(Image.fromarray(crop).resize(enlarged, Image.Resampling.BICUBIC))


def look_once(answerer: Answerer) -> Looker:
    """Asks every question once, about the whole image."""

    def look(requests: Sequence[Request], families: Sequence[DeviceFamily]) -> list[Looked]:
        return [_looked((), request, reply) for request, reply in _ask(answerer, requests)]

    return look


def look_twice(answerer: Answerer, dialect: Dialect, zoom: ZoomConfig) -> Looker:
    """Asks every question once about the whole image, and again about a crop around the point it was answered with.

    A first answer without a point (unparsable, or a refusal) stands: that question costs one call, all others two. The
    second answer stands whatever it is. The second request has the first one's messages and its seed with a 1 behind.

    Returns:
      A `Looker`. It raises DataError for a request that has not exactly one image.
    """

    def look(requests: Sequence[Request], families: Sequence[DeviceFamily]) -> list[Looked]:
        results = look_once(answerer)(requests, families)
        seconds: dict[int, tuple[Request, Window]] = {}
        for index, (request, family, result) in enumerate(zip(requests, families, results, strict=True)):
            point = None if result.failure else _pointed(dialect, family, result.looks[0])
            if point is not None:
                height, width = _only_image(request)[1].shape[:2]
                window = window_around(point, zoom.crop_size(width, height), width, height)
                seconds[index] = _second(request, window, zoom), window
        asked = _ask(answerer, [request for request, _ in seconds.values()])
        for (index, (_, window)), (_, reply) in zip(seconds.items(), asked, strict=True):
            results[index] = _looked(results[index].looks, requests[index], reply, window)
        return results

    return look


def _ask(answerer: Answerer, requests: Sequence[Request]) -> list[tuple[Request, Reply]]:
    return list(zip(requests, answerer(requests) if requests else [], strict=True))


def _looked(before: tuple[Look, ...], request: Request, reply: Reply, window: Window | None = None) -> Looked:
    if reply.failure:
        return Looked(failure=f"look {len(before) + 1}: {reply.failure}")
    if window is None:
        height, width = _only_image(request)[1].shape[:2]
        window = 0.0, 0.0, float(width), float(height)
    return Looked((*before, Look(reply.response, window, reply.shown)))


def _pointed(dialect: Dialect, family: DeviceFamily, look: Look) -> Point | None:
    try:
        action = dialect.parse(look.response, family, shown=look.shown).action
    except ParseError:
        return None
    relative = pointed_at(action)
    return None if relative is None else point_in_image(relative, look.window)


def _second(request: Request, window: Window, zoom: ZoomConfig) -> Request:
    step, image = _only_image(request)
    return dataclasses.replace(request, images={step: cut(image, window, zoom.enlarged)}, seed=(*request.seed, 1))


def _only_image(request: Request) -> tuple[int, np.ndarray]:
    if len(request.images) != 1:
        raise DataError(f"a grounding question has one image, this request has {len(request.images)}")
    return next(iter(request.images.items()))
