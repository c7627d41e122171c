"""Shapes of the Qwen3-VL backbones: frozen config dataclasses and the presets of the published sizes."""

from __future__ import annotations

import dataclasses
import math

from gui_owl_jax.agent.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """The vision tower: a ViT over patches, a merger, and one DeepStack merger per tapped block.

    Attributes:
      width: model width D of the tower.
      blocks: number of transformer blocks.
      heads: attention heads; the head width is width / heads.
      mlp_width: hidden width of the blocks' MLP.
      out_width: width of the merged features, equal to the text width.
      patch_size: side p of a patch in pixels.
      merge_size: m; m * m neighbouring patches become one token of the decoder.
      temporal_patch_size: tp, frames per patch (an image counts as tp equal frames).
      channels: colour channels C.
      num_position_embeddings: rows S * S of the learned position table.
      deepstack_indexes: blocks after which the hidden state is tapped, ascending.
      window: layout knob, no part of the weights. 0: attention spans the row's patches. w > 0: no image straddles a
        multiple of w patches and attention is computed inside windows of w, at cost P * w instead of P * P.
    """

    width: int
    blocks: int
    heads: int
    mlp_width: int
    out_width: int
    patch_size: int = 16
    merge_size: int = 2
    temporal_patch_size: int = 2
    channels: int = 3
    num_position_embeddings: int = 2304
    deepstack_indexes: tuple[int, ...] = ()
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    window: int = 0

    def __post_init__(self) -> None:
        _require(self.width % self.heads == 0, "vision.heads must divide vision.width")
        _require(self.head_width % 4 == 0, "vision head width (width / heads) must be a multiple of 4")
        _require(self.table_side**2 == self.num_position_embeddings, "vision.num_position_embeddings must be a square")
        taps = self.deepstack_indexes
        ascending = all(a < b for a, b in zip(taps, taps[1:]))
        in_range = all(0 <= i < self.blocks for i in taps)
        _require(ascending and in_range, f"vision.deepstack_indexes {taps} must ascend inside [0, {self.blocks})")
        _require(self.window % self.merge_size**2 == 0, "vision.window must be a multiple of merge_size ** 2")

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    @property
    def table_side(self) -> int:
        """Side S of the square table of learned positions."""
        return math.isqrt(self.num_position_embeddings)

    @property
    def patch_columns(self) -> int:
        """Columns C * p * p of an image patch, the temporal copies left out."""
        return self.channels * self.patch_size**2


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """The Qwen3 decoder.

    Attributes:
      vocab_size: rows V of the embedding.
      width: model width D.
      layers: number of decoder layers.
      heads: query heads N.
      kv_heads: key and value heads K; each serves heads / kv_heads query heads.
      head_width: H, a value of its own (not width / heads).
      mlp_width: hidden width of the SwiGLU MLP.
      mrope_section: how many of the H / 2 rotary frequencies follow the T, H and W position (interleaved).
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    mlp_width: int
    norm_eps: float = 1e-6
    rope_theta: float = 5_000_000.0
    mrope_section: tuple[int, int, int] = (24, 20, 20)
    max_position_embeddings: int = 262_144

    def __post_init__(self) -> None:
        _require(self.heads % self.kv_heads == 0, "text.kv_heads must divide text.heads")
        _require(self.head_width % 2 == 0, "text.head_width must be even")
        half = self.head_width // 2
        _require(sum(self.mrope_section) == half, f"text.mrope_section {self.mrope_section} must sum to {half}")
        interleavable = 3 * max(self.mrope_section[1:]) <= half + 2
        _require(interleavable, f"text.mrope_section {self.mrope_section}: H and W reach beyond the frequencies")


@dataclasses.dataclass(frozen=True)
class QwenVLConfig:
    """A Qwen3-VL model: vision tower, decoder, and what joins them.

    Attributes:
      tie_word_embeddings: the head is the transposed embedding; no "head" parameter exists then.
      image_mean: per channel, in units of pixel value / 255; patches travel as uint8 and are normalised on the device.
      image_std: per channel, as image_mean.
    """

    vision: VisionConfig
    text: TextConfig
    tie_word_embeddings: bool = True
    image_token_id: int = 151_655
    video_token_id: int = 151_656
    vision_start_token_id: int = 151_652
    vision_end_token_id: int = 151_653
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        _require(self.vision.out_width == self.text.width, "vision.out_width must equal text.width")
        levels = len(self.vision.deepstack_indexes)
        _require(levels <= self.text.layers, "vision.deepstack_indexes: more levels than text.layers")
        channels = (len(self.image_mean), len(self.image_std))
        _require(channels == (self.vision.channels,) * 2, "image_mean and image_std need one value per channel")
        for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"):
            _require(0 <= getattr(self, name) < self.text.vocab_size, f"{name} lies outside the vocabulary")


def get_preset(name: str) -> QwenVLConfig:
    """Returns the config of a published size ("2b", "4b", "8b", "32b", each also with "-thinking") or of "nano".

    Raises:
      ConfigError: no preset has that name.
    """
    key = name.lower().removesuffix("-thinking")
    if key not in _PRESETS:
        raise ConfigError(f"no model preset {name!r}; choose one of {', '.join(sorted(_PRESETS))}")
    return _PRESETS[key]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _qwen3_vl(
    *, width: int, layers: int, heads: int, mlp_width: int, tied: bool, large_vision: bool = False
) -> QwenVLConfig:
    if large_vision:
        tower = VisionConfig(1152, 27, 16, 4304, out_width=width, deepstack_indexes=(8, 16, 24))
    else:
        tower = VisionConfig(1024, 24, 16, 4096, out_width=width, deepstack_indexes=(5, 11, 17))
    text = TextConfig(
        vocab_size=151_936,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_width=128,
        mlp_width=mlp_width,
    )
    return QwenVLConfig(vision=tower, text=text, tie_word_embeddings=tied)


# The nano model shares every line of code with the published sizes. Its special tokens sit at the ids that the small
# tokenizer gives them (1000 and up in a vocabulary of 1024).
_NANO = QwenVLConfig(
    vision=VisionConfig(
        width=64,
        blocks=2,
        heads=2,
        mlp_width=256,
        out_width=128,
        num_position_embeddings=144,
        deepstack_indexes=(0,),
    ),
    text=TextConfig(
        vocab_size=1024,
        width=128,
        layers=3,
        heads=4,
        kv_heads=2,
        head_width=32,
        mlp_width=384,
        rope_theta=10_000.0,
        mrope_section=(6, 5, 5),
        max_position_embeddings=4096,
    ),
    image_token_id=1000,
    video_token_id=1001,
    vision_start_token_id=1002,
    vision_end_token_id=1003,
)

_PRESETS = {
    "nano": _NANO,
    "2b": _qwen3_vl(width=2048, layers=28, heads=16, mlp_width=6144, tied=True),
    "4b": _qwen3_vl(width=2560, layers=36, heads=32, mlp_width=9728, tied=True),
    "8b": _qwen3_vl(width=4096, layers=36, heads=32, mlp_width=12_288, tied=False, large_vision=True),
    "32b": _qwen3_vl(width=5120, layers=64, heads=64, mlp_width=25_600, tied=False, large_vision=True),
}
