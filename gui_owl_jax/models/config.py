"""Shapes of the Qwen-VL backbones: frozen config dataclasses and the presets of the published sizes.

Three variants share one code: Qwen3-VL, Qwen3-VL-MoE (`TextConfig.moe`) and Qwen2.5-VL (`VisionConfig.kind`).
"""

from __future__ import annotations

import dataclasses
import math

from gui_owl_jax.agent.errors import ConfigError

VISION_KINDS = ("qwen3_vl", "qwen2_5_vl")
VIDEO_POSITIONS = ("largest", "extent")


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """The vision tower: a ViT over patches, a merger, and one DeepStack merger per tapped block.

    Attributes:
      kind: "qwen3_vl" (learned positions, LayerNorm, GELU, DeepStack) or "qwen2_5_vl" (attention inside windows,
        RMSNorm, SwiGLU; no table of positions and no DeepStack).
      width: model width D of the tower.
      blocks: number of transformer blocks.
      heads: attention heads; the head width is width / heads.
      mlp_width: hidden width of the blocks' MLP.
      out_width: width of the merged features, equal to the text width.
      patch_size: side p of a patch in pixels.
      merge_size: m; m * m neighbouring patches become one token of the decoder.
      temporal_patch_size: tp, frames per patch (an image counts as tp equal frames).
      channels: colour channels C.
      num_position_embeddings: rows S * S of the learned position table; 0 for Qwen2.5-VL.
      deepstack_indexes: blocks after which the hidden state is tapped, ascending.
      window: layout knob, no part of the weights. 0: attention spans the row's patches. w > 0: no image straddles a
        multiple of w patches and attention is computed inside windows of w, at cost P * w instead of P * P.
      video: layout knob, no part of the weights. Patches travel with the pixels of all their frames, so that rows may
        hold videos; without it an image's patch travels once and stands for `temporal_patch_size` equal frames.
      attention_window: side of the attention windows of Qwen2.5-VL in pixels; 0: every block sees the whole image.
      full_attention_blocks: blocks that see the whole image all the same, ascending.
      tokens_per_second: how fast the T position of a Qwen2.5-VL video counts; 0 where timestamps are text.
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
    video: bool = False
    kind: str = "qwen3_vl"
    attention_window: int = 0
    full_attention_blocks: tuple[int, ...] = ()
    tokens_per_second: float = 0.0

    def __post_init__(self) -> None:
        _require(self.kind in VISION_KINDS, f"vision.kind {self.kind!r} is none of {', '.join(VISION_KINDS)}")
        windowed = self.kind == "qwen2_5_vl"
        _require(windowed == (self.attention_window > 0), "vision.attention_window is for Qwen2.5-VL, which needs one")
        _require(
            windowed == (self.num_position_embeddings == 0), "vision.num_position_embeddings is 0 in Qwen2.5-VL only"
        )
        _require(not (windowed and self.deepstack_indexes), "vision.deepstack_indexes: Qwen2.5-VL has no DeepStack")
        _require(not (windowed and self.window), "vision.window is for towers without attention windows of their own")
        side = self.attention_window % (self.patch_size * self.merge_size)
        _require(side == 0, "vision.attention_window must be a multiple of patch_size * merge_size")
        full = self.full_attention_blocks
        _require(not full or windowed, "vision.full_attention_blocks needs vision.attention_window")
        _ascending(full, self.blocks, "vision.full_attention_blocks")
        _require(self.width % self.heads == 0, "vision.heads must divide vision.width")
        _require(self.head_width % 4 == 0, "vision head width (width / heads) must be a multiple of 4")
        _require(self.table_side**2 == self.num_position_embeddings, "vision.num_position_embeddings must be a square")
        _ascending(self.deepstack_indexes, self.blocks, "vision.deepstack_indexes")
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
        """Columns of a patch as it travels: C * p * p, with `video` C * tp * p * p."""
        return self.channels * self.patch_size**2 * (self.temporal_patch_size if self.video else 1)

    @property
    def window_side(self) -> int:
        """Side of an attention window in merged patches; 0 without windows."""
        return self.attention_window // (self.patch_size * self.merge_size)


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """The experts of a decoder layer, in place of its MLP. No expert has a capacity, no token is dropped.

    Attributes:
      experts: number of experts E.
      per_token: experts k that each token visits.
      width: hidden width of one expert's SwiGLU MLP.
      aux_weight: weight of the load-balancing loss.
    """

    experts: int
    per_token: int
    width: int
    aux_weight: float = 0.001

    def __post_init__(self) -> None:
        _require(1 <= self.per_token <= self.experts, "text.moe.per_token must lie in [1, experts]")
        _require(self.width > 0 and self.aux_weight >= 0, "text.moe: width must be positive, aux_weight not negative")


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """The Qwen3 decoder, or with `qkv_bias` and without `qk_norm` that of Qwen2.5.

    Attributes:
      vocab_size: rows V of the embedding.
      width: model width D.
      layers: number of decoder layers.
      heads: query heads N.
      kv_heads: key and value heads K; each serves heads / kv_heads query heads.
      head_width: H, a value of its own (not width / heads).
      mlp_width: hidden width of the SwiGLU MLP (kept, but not used, where `moe` replaces the MLP).
      mrope_section: how many of the H / 2 rotary frequencies follow the T, H and W position.
      mrope_interleaved: T H W T H W ... (Qwen3), or first all of T, then H, then W (Qwen2.5).
      qk_norm: queries and keys are normed per head.
      qkv_bias: the projections to q, k and v have biases.
      moe: experts in place of the MLP of every layer; None: a dense model.
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
    mrope_interleaved: bool = True
    qk_norm: bool = True
    qkv_bias: bool = False
    moe: MoEConfig | None = None

    def __post_init__(self) -> None:
        _require(self.heads % self.kv_heads == 0, "text.kv_heads must divide text.heads")
        _require(self.head_width % 2 == 0, "text.head_width must be even")
        half = self.head_width // 2
        _require(sum(self.mrope_section) == half, f"text.mrope_section {self.mrope_section} must sum to {half}")
        interleavable = not self.mrope_interleaved or 3 * max(self.mrope_section[1:]) <= half + 2
        _require(interleavable, f"text.mrope_section {self.mrope_section}: H and W reach beyond the frequencies")


@dataclasses.dataclass(frozen=True)
class QwenVLConfig:
    """A Qwen-VL model: vision tower, decoder, and what joins them.

    Attributes:
      tie_word_embeddings: the head is the transposed embedding; no "head" parameter exists then.
      image_mean: per channel, in units of pixel value / 255; patches travel as uint8 and are normalised on the device.
      image_std: per channel, as image_mean.
      video_positions: where text goes on behind a Qwen2.5-VL video. "largest": behind its largest position on any axis,
        as the models were trained and transformers 4.57 computes; "extent": behind its height or width, as transformers
        5 computes, by which text can stand before the video's last frames. Images are the same under both.
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
    video_positions: str = "largest"

    def __post_init__(self) -> None:
        known = ", ".join(VIDEO_POSITIONS)
        _require(self.video_positions in VIDEO_POSITIONS, f"video_positions must be one of {known}")
        _require(self.vision.out_width == self.text.width, "vision.out_width must equal text.width")
        levels = len(self.vision.deepstack_indexes)
        _require(levels <= self.text.layers, "vision.deepstack_indexes: more levels than text.layers")
        channels = (len(self.image_mean), len(self.image_std))
        _require(channels == (self.vision.channels,) * 2, "image_mean and image_std need one value per channel")
        for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"):
            _require(0 <= getattr(self, name) < self.text.vocab_size, f"{name} lies outside the vocabulary")

    @property
    def model_type(self) -> str:
        """The name that config.json gives the variant: qwen3_vl, qwen3_vl_moe or qwen2_5_vl."""
        if self.vision.kind == "qwen2_5_vl":
            return "qwen2_5_vl"
        return "qwen3_vl_moe" if self.text.moe else "qwen3_vl"


def get_preset(name: str) -> QwenVLConfig:
    """Returns the config of a published size, or of a nano model for CPUs and tests.

    Qwen3-VL: "2b", "4b", "8b", "32b", with experts "30b-a3b" and "235b-a22b", each also with "-thinking" (the same
    shapes). Qwen2.5-VL: "qwen2.5-3b", "qwen2.5-7b", "qwen2.5-32b", "qwen2.5-72b". Nano: "nano", "nano-moe",
    "nano-qwen2.5".

    Raises:
      ConfigError: no preset has that name.
    """
    key = name.lower()
    thinking = key.removesuffix("-thinking")
    if thinking != key and not thinking.startswith(("nano", "qwen2.5")):
        key = thinking
    if key not in _PRESETS:
        raise ConfigError(f"no model preset {name!r}; choose one of {', '.join(sorted(_PRESETS))}")
    return _PRESETS[key]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _ascending(indexes: tuple[int, ...], end: int, name: str) -> None:
    ascending = all(a < b for a, b in zip(indexes, indexes[1:])) and all(0 <= i < end for i in indexes)
    _require(ascending, f"{name} {indexes} must ascend inside [0, {end})")


def _qwen3_vl(
    *,
    width: int,
    layers: int,
    heads: int,
    mlp_width: int,
    kv_heads: int = 8,
    tied: bool = False,
    large_vision: bool = True,
    moe: MoEConfig | None = None,
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
        kv_heads=kv_heads,
        head_width=128,
        mlp_width=mlp_width,
        moe=moe,
    )
    return QwenVLConfig(vision=tower, text=text, tie_word_embeddings=tied)


# Means and deviations of CLIP's training images, which Qwen2.5-VL takes over.
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def _qwen2_5_vl(
    *, width: int, layers: int, heads: int, kv_heads: int, mlp_width: int, vocab_size: int = 152_064, small: bool = True
) -> QwenVLConfig:
    tower = VisionConfig(
        width=1280,
        blocks=32,
        heads=16,
        mlp_width=3420 if small else 3456,
        out_width=width,
        patch_size=14,
        num_position_embeddings=0,
        kind="qwen2_5_vl",
        attention_window=112,
        full_attention_blocks=(7, 15, 23, 31),
        tokens_per_second=2,
    )
    text = TextConfig(
        vocab_size=vocab_size,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_width=width // heads,
        mlp_width=mlp_width,
        rope_theta=1_000_000.0,
        mrope_section=(16, 24, 24),
        max_position_embeddings=128_000,
        mrope_interleaved=False,
        qk_norm=False,
        qkv_bias=True,
    )
    tied = vocab_size == 151_936
    return QwenVLConfig(tower, text, tie_word_embeddings=tied, image_mean=_CLIP_MEAN, image_std=_CLIP_STD)


# The nano models share every line of code with the published sizes. Their special tokens sit at the ids that the small
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
_NANO_MOE = dataclasses.replace(
    _NANO,
    text=dataclasses.replace(_NANO.text, moe=MoEConfig(experts=8, per_token=2, width=96)),
    tie_word_embeddings=False,
)
_NANO_QWEN2_5 = dataclasses.replace(
    _NANO,
    vision=VisionConfig(
        width=64,
        blocks=3,
        heads=2,
        mlp_width=160,
        out_width=128,
        patch_size=14,
        num_position_embeddings=0,
        kind="qwen2_5_vl",
        attention_window=56,
        full_attention_blocks=(1,),
        tokens_per_second=2,
    ),
    text=dataclasses.replace(_NANO.text, mrope_interleaved=False, qk_norm=False, qkv_bias=True),
    image_mean=_CLIP_MEAN,
    image_std=_CLIP_STD,
)

_PRESETS = {
    "nano": _NANO,
    "nano-moe": _NANO_MOE,
    "nano-qwen2.5": _NANO_QWEN2_5,
    "2b": _qwen3_vl(width=2048, layers=28, heads=16, mlp_width=6144, tied=True, large_vision=False),
    "4b": _qwen3_vl(width=2560, layers=36, heads=32, mlp_width=9728, tied=True, large_vision=False),
    "8b": _qwen3_vl(width=4096, layers=36, heads=32, mlp_width=12_288),
    "32b": _qwen3_vl(width=5120, layers=64, heads=64, mlp_width=25_600),
    "30b-a3b": _qwen3_vl(
        width=2048, layers=48, heads=32, kv_heads=4, mlp_width=6144, moe=MoEConfig(128, per_token=8, width=768)
    ),
    "235b-a22b": _qwen3_vl(
        width=4096, layers=94, heads=64, kv_heads=4, mlp_width=12_288, moe=MoEConfig(128, per_token=8, width=1536)
    ),
    "qwen2.5-3b": _qwen2_5_vl(width=2048, layers=36, heads=16, kv_heads=2, mlp_width=11_008, vocab_size=151_936),
    "qwen2.5-7b": _qwen2_5_vl(width=3584, layers=28, heads=28, kv_heads=4, mlp_width=18_944),
    "qwen2.5-32b": _qwen2_5_vl(width=5120, layers=64, heads=40, kv_heads=8, mlp_width=27_648, small=False),
    "qwen2.5-72b": _qwen2_5_vl(width=8192, layers=80, heads=64, kv_heads=8, mlp_width=29_568, small=False),
}
