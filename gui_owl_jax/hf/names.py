"""One table between the tensor names of Hugging Face checkpoints and the parameter tree of `gui_owl_jax.models`.

A checkpoint has one tensor per layer, stored [out, in]; the tree has stacked layers and kernels [in, out]. The same
table serves both directions. Names are those of the published checkpoints: `model.visual.*` and
`model.language_model.*` for Qwen3-VL, `visual.*` and `model.*` for Qwen2.5-VL.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.qwen_vl import Params, abstract_params

# How the experts of a layer are stored: "hub" (the published files, and transformers 4.57) [E, D, 2I] and [E, I, D],
# used as x @ W; "transformers" (what transformers 5 writes) [E, 2I, D] and [E, D, I]. Gate comes before up in both.
EXPERT_LAYOUTS = ("hub", "transformers")


class Form(enum.Enum):
    """How a stored tensor relates to the parameter."""

    SAME = "same"  # vectors and embedding tables
    LINEAR = "linear"  # [out, in] <-> [in, out]
    CONV = "conv"  # [D, C, tp, p, p] <-> [C*tp*p*p, D]: kernel = stride, so the convolution is a matmul
    EXPERTS = "experts"  # [E, I, D] <-> [E, I, D]
    EXPERTS_SWAPPED = "experts, swapped"  # [E, D, I] <-> [E, I, D]
    GATE_UP = "gate and up"  # [E, D, 2I] <-> [E, D, 2, I]
    GATE_UP_SWAPPED = "gate and up, swapped"  # [E, 2I, D] <-> [E, D, 2, I]


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where one tensor of a checkpoint lives in the parameter tree.

    Attributes:
      path: keys from the root of the tree to the array.
      layer: index on the array's leading axis; None where the array is not stacked.
      form: how the stored tensor relates to the (layer of the) array.
      shape: of the stored tensor.
    """

    path: tuple[str, ...]
    layer: int | None
    form: Form
    shape: tuple[int, ...]

    def to_param(self, tensor: np.ndarray) -> np.ndarray:
        """The parameter (one layer of it) that a stored tensor of `shape` holds; a view."""
        match self.form:
            case Form.SAME | Form.EXPERTS:
                return tensor
            case Form.LINEAR | Form.CONV:
                return tensor.reshape(tensor.shape[0], -1).T
            case Form.EXPERTS_SWAPPED:
                return tensor.swapaxes(1, 2)
            case Form.GATE_UP:
                return tensor.reshape(*tensor.shape[:2], 2, -1)
            case Form.GATE_UP_SWAPPED:
                return tensor.reshape(tensor.shape[0], 2, -1, tensor.shape[2]).transpose(0, 3, 1, 2)

    def to_stored(self, param: np.ndarray) -> np.ndarray:
        """The stored tensor of a parameter (one layer of it): the inverse of `to_param`."""
        match self.form:
            case Form.SAME | Form.EXPERTS:
                return param
            case Form.LINEAR | Form.CONV:
                return param.T.reshape(self.shape)
            case Form.EXPERTS_SWAPPED:
                return param.swapaxes(1, 2)
            case Form.GATE_UP:
                return param.reshape(self.shape)
            case Form.GATE_UP_SWAPPED:
                return param.transpose(0, 2, 3, 1).reshape(self.shape)


def _stored_shape(form: Form, shape: tuple[int, ...], conv: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the stored tensor of a parameter (one layer of it) of `shape`; conv is (C, tp, p, p)."""
    match form:
        case Form.LINEAR:
            return shape[::-1]
        case Form.CONV:
            return (shape[-1], *conv)
        case Form.EXPERTS_SWAPPED:
            return (shape[0], shape[2], shape[1])
        case Form.GATE_UP:
            return (*shape[:2], 2 * shape[3])
        case Form.GATE_UP_SWAPPED:
            return (shape[0], 2 * shape[3], shape[1])
    return shape


def _linear(hub: str, path: str, bias: bool = True) -> Iterator[tuple[str, str, Form]]:
    yield f"{hub}.weight", f"{path}/kernel", Form.LINEAR
    if bias:
        yield f"{hub}.bias", f"{path}/bias", Form.SAME


def _norm(hub: str, path: str, bias: bool = True) -> Iterator[tuple[str, str, Form]]:
    yield f"{hub}.weight", f"{path}/scale", Form.SAME
    if bias:
        yield f"{hub}.bias", f"{path}/bias", Form.SAME


def _qwen3_vision(hub: str, path: str, deepstack: bool) -> Iterator[tuple[str, str, Form]]:
    block, blocks = f"{hub}.blocks.{{}}", f"{path}/blocks"
    yield f"{hub}.patch_embed.proj.weight", f"{path}/patch_embed/kernel", Form.CONV
    yield f"{hub}.patch_embed.proj.bias", f"{path}/patch_embed/bias", Form.SAME
    yield f"{hub}.pos_embed.weight", f"{path}/pos_embed/embedding", Form.SAME
    yield from _norm(f"{block}.norm1", f"{blocks}/norm1")
    yield from _linear(f"{block}.attn.qkv", f"{blocks}/qkv")
    yield from _linear(f"{block}.attn.proj", f"{blocks}/proj")
    yield from _norm(f"{block}.norm2", f"{blocks}/norm2")
    yield from _linear(f"{block}.mlp.linear_fc1", f"{blocks}/fc1")
    yield from _linear(f"{block}.mlp.linear_fc2", f"{blocks}/fc2")
    mergers = {"merger": "merger"} | ({"deepstack_merger_list.{}": "deepstack"} if deepstack else {})
    for name, merger in mergers.items():
        yield from _norm(f"{hub}.{name}.norm", f"{path}/{merger}/norm")
        yield from _linear(f"{hub}.{name}.linear_fc1", f"{path}/{merger}/fc1")
        yield from _linear(f"{hub}.{name}.linear_fc2", f"{path}/{merger}/fc2")


def _qwen2_5_vision(hub: str, path: str) -> Iterator[tuple[str, str, Form]]:
    block, blocks = f"{hub}.blocks.{{}}", f"{path}/blocks"
    yield f"{hub}.patch_embed.proj.weight", f"{path}/patch_embed/kernel", Form.CONV
    yield from _norm(f"{block}.norm1", f"{blocks}/norm1", bias=False)
    yield from _linear(f"{block}.attn.qkv", f"{blocks}/qkv")
    yield from _linear(f"{block}.attn.proj", f"{blocks}/proj")
    yield from _norm(f"{block}.norm2", f"{blocks}/norm2", bias=False)
    for name in ("gate", "up", "down"):
        yield from _linear(f"{block}.mlp.{name}_proj", f"{blocks}/{name}")
    yield from _norm(f"{hub}.merger.ln_q", f"{path}/merger/norm", bias=False)
    yield from _linear(f"{hub}.merger.mlp.0", f"{path}/merger/fc1")
    yield from _linear(f"{hub}.merger.mlp.2", f"{path}/merger/fc2")


def _text(config: QwenVLConfig, hub: str, path: str, experts: str) -> Iterator[tuple[str, str, Form]]:
    layer, layers = f"{hub}.layers.{{}}", f"{path}/layers"
    yield f"{hub}.embed_tokens.weight", f"{path}/embed/embedding", Form.SAME
    yield from _norm(f"{layer}.input_layernorm", f"{layers}/input_norm", bias=False)
    for name in "qkvo":
        yield from _linear(f"{layer}.self_attn.{name}_proj", f"{layers}/{name}", config.text.qkv_bias and name != "o")
    for name in ("q_norm", "k_norm") if config.text.qk_norm else ():
        yield from _norm(f"{layer}.self_attn.{name}", f"{layers}/{name}", bias=False)
    yield from _norm(f"{layer}.post_attention_layernorm", f"{layers}/post_norm", bias=False)
    if config.text.moe is None:
        for name in ("gate", "up", "down"):
            yield from _linear(f"{layer}.mlp.{name}_proj", f"{layers}/{name}", bias=False)
    else:
        swapped = experts == "transformers"
        gate_up = Form.GATE_UP_SWAPPED if swapped else Form.GATE_UP
        yield from _linear(f"{layer}.mlp.gate", f"{layers}/router", bias=False)
        yield f"{layer}.mlp.experts.gate_up_proj", f"{layers}/gate_up/kernel", gate_up
        down = Form.EXPERTS_SWAPPED if swapped else Form.EXPERTS
        yield f"{layer}.mlp.experts.down_proj", f"{layers}/down/kernel", down
    yield from _norm(f"{hub}.norm", f"{path}/norm", bias=False)


def _table(config: QwenVLConfig, experts: str) -> Iterator[tuple[str, str, Form]]:
    """Yields (name in the checkpoint, path in the tree, form); `{}` stands for the index on the leading axis."""
    if config.model_type == "qwen2_5_vl":
        yield from _qwen2_5_vision("visual", "vision")
        yield from _text(config, "model", "text", experts)
    else:
        yield from _qwen3_vision("model.visual", "vision", bool(config.vision.deepstack_indexes))
        yield from _text(config, "model.language_model", "text", experts)
    if not config.tie_word_embeddings:
        yield from _linear(HEAD.removesuffix(".weight"), "head", bias=False)


HEAD = "lm_head.weight"
EMBEDDING = "model.language_model.embed_tokens.weight"
# Spellings without the common root: Qwen2.5-VL's, and those of the first Qwen3-VL files.
_ROOTLESS = (
    (re.compile(r"^visual\."), "model.visual."),
    (re.compile(r"^model\.(?=(embed_tokens|layers|norm)\.)"), "model.language_model."),
)


def canonical(name: str) -> str:
    """One spelling for every family, `model.visual.*` and `model.language_model.*`, which Qwen3-VL files have."""
    for pattern, replacement in _ROOTLESS:
        name = pattern.sub(replacement, name)
    return name


def leaf(tree: Params, path: tuple[str, ...]) -> Any:
    """The array of a nested dict at `path`, or None where there is none."""
    node: Any = tree
    for key in path:
        if not isinstance(node, dict) or key not in node:
            return None
        node = node[key]
    return node


def slots(config: QwenVLConfig, experts: str = "hub") -> dict[str, Slot]:
    """All tensors of a published checkpoint of this model by name, layer by layer.

    Args:
      config: the model.
      experts: one of `EXPERT_LAYOUTS`; without meaning in a dense model.

    Raises:
      ConfigError: there is no such layout.
    """
    if experts not in EXPERT_LAYOUTS:
        raise ConfigError(f"expert layout {experts!r} is unknown; choose one of {', '.join(EXPERT_LAYOUTS)}")
    tree, vision = abstract_params(config), config.vision
    conv = (vision.channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    once: dict[str, Slot] = {}
    layered: dict[str, Slot] = {}
    for name, path_text, form in _table(config, experts):
        path = tuple(path_text.split("/"))
        array = leaf(tree, path)
        stacked = "{}" in name
        shape = _stored_shape(form, tuple(array.shape[1:] if stacked else array.shape), conv)
        if not stacked:
            once[name] = Slot(path, None, form, shape)
        for layer in range(array.shape[0] if stacked else 0):
            layered[name.format(layer)] = Slot(path, layer, form, shape)
    # Layer by layer (the sort is stable), so that a layer's tensors lie together in the shards of an export.
    by_layer = sorted(layered.items(), key=lambda item: (item[1].path[:2], item[1].layer))
    return once | dict(by_layer)
