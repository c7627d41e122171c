"""One table between the tensor names of Hugging Face checkpoints and the parameter tree of `gui_owl_jax.models`.

A checkpoint has one tensor per layer, stored [out, in]; the tree has stacked layers and kernels [in, out]. The same
table serves both directions.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.qwen_vl import Params, abstract_params


class Form(enum.Enum):
    """How a stored tensor relates to the parameter."""

    SAME = "same"  # vectors and embedding tables
    LINEAR = "linear"  # [out, in] <-> [in, out]
    CONV = "conv"  # [D, C, tp, p, p] <-> [C*tp*p*p, D]: kernel = stride, so the convolution is a matmul


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
        return tensor if self.form is Form.SAME else tensor.reshape(tensor.shape[0], -1).T

    def to_stored(self, param: np.ndarray) -> np.ndarray:
        """The stored tensor of a parameter (one layer of it): the inverse of `to_param`."""
        return param if self.form is Form.SAME else param.T.reshape(self.shape)


def _linear(hub: str, path: str, bias: bool = True) -> Iterator[tuple[str, str, Form]]:
    yield f"{hub}.weight", f"{path}/kernel", Form.LINEAR
    if bias:
        yield f"{hub}.bias", f"{path}/bias", Form.SAME


def _norm(hub: str, path: str, bias: bool = True) -> Iterator[tuple[str, str, Form]]:
    yield f"{hub}.weight", f"{path}/scale", Form.SAME
    if bias:
        yield f"{hub}.bias", f"{path}/bias", Form.SAME


def _merger(hub: str, path: str) -> Iterator[tuple[str, str, Form]]:
    yield from _norm(f"{hub}.norm", f"{path}/norm")
    yield from _linear(f"{hub}.linear_fc1", f"{path}/fc1")
    yield from _linear(f"{hub}.linear_fc2", f"{path}/fc2")


def _table() -> Iterator[tuple[str, str, Form]]:
    """Yields (name in the checkpoint, path in the tree, form); `{}` stands for the index on the leading axis."""
    hub, path = "model.visual", "vision"
    yield f"{hub}.patch_embed.proj.weight", f"{path}/patch_embed/kernel", Form.CONV
    yield f"{hub}.patch_embed.proj.bias", f"{path}/patch_embed/bias", Form.SAME
    yield f"{hub}.pos_embed.weight", f"{path}/pos_embed/embedding", Form.SAME
    yield from _norm(f"{hub}.blocks.{{}}.norm1", f"{path}/blocks/norm1")
    yield from _linear(f"{hub}.blocks.{{}}.attn.qkv", f"{path}/blocks/qkv")
    yield from _linear(f"{hub}.blocks.{{}}.attn.proj", f"{path}/blocks/proj")
    yield from _norm(f"{hub}.blocks.{{}}.norm2", f"{path}/blocks/norm2")
    yield from _linear(f"{hub}.blocks.{{}}.mlp.linear_fc1", f"{path}/blocks/fc1")
    yield from _linear(f"{hub}.blocks.{{}}.mlp.linear_fc2", f"{path}/blocks/fc2")
    yield from _merger(f"{hub}.merger", f"{path}/merger")
    yield from _merger(f"{hub}.deepstack_merger_list.{{}}", f"{path}/deepstack")

    hub, path = "model.language_model", "text"
    yield f"{hub}.embed_tokens.weight", f"{path}/embed/embedding", Form.SAME
    layer, layers = f"{hub}.layers.{{}}", f"{path}/layers"
    yield from _norm(f"{layer}.input_layernorm", f"{layers}/input_norm", bias=False)
    for name in "qkvo":
        yield from _linear(f"{layer}.self_attn.{name}_proj", f"{layers}/{name}", bias=False)
    yield from _norm(f"{layer}.self_attn.q_norm", f"{layers}/q_norm", bias=False)
    yield from _norm(f"{layer}.self_attn.k_norm", f"{layers}/k_norm", bias=False)
    yield from _norm(f"{layer}.post_attention_layernorm", f"{layers}/post_norm", bias=False)
    for name in ("gate", "up", "down"):
        yield from _linear(f"{layer}.mlp.{name}_proj", f"{layers}/{name}", bias=False)
    yield from _norm(f"{hub}.norm", f"{path}/norm", bias=False)
    yield from _linear("lm_head", "head", bias=False)


TABLE: tuple[tuple[str, str, Form], ...] = tuple(_table())
HEAD = "lm_head.weight"
EMBEDDING = "model.language_model.embed_tokens.weight"
# Spellings of earlier Qwen-VL checkpoints, without the common root.
_OLD_PREFIXES = (
    (re.compile(r"^visual\."), "model.visual."),
    (re.compile(r"^model\.(?=(embed_tokens|layers|norm)\.)"), "model.language_model."),
)


def canonical(name: str) -> str:
    """The name that the published Qwen3-VL checkpoints give a tensor: `visual.*` -> `model.visual.*`."""
    for pattern, replacement in _OLD_PREFIXES:
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


def slots(config: QwenVLConfig) -> dict[str, Slot]:
    """All tensors of a checkpoint of this model by canonical name, layer by layer."""
    tree = abstract_params(config)
    conv = (config.vision.channels, config.vision.temporal_patch_size, config.vision.patch_size)
    once: dict[str, Slot] = {}
    layered: dict[str, Slot] = {}
    for name, path_text, form in TABLE:
        path = tuple(path_text.split("/"))
        array = leaf(tree, path)
        if array is None:
            continue  # the head of a tied model
        stacked = "{}" in name
        shape = tuple(array.shape[1:] if stacked else array.shape)
        if form is Form.LINEAR:
            shape = shape[::-1]
        elif form is Form.CONV:
            shape = (shape[-1], *conv, conv[-1])
        if not stacked:
            once[name] = Slot(path, None, form, shape)
        for layer in range(array.shape[0] if stacked else 0):
            layered[name.format(layer)] = Slot(path, layer, form, shape)
    # Layer by layer (the sort is stable), so that a layer's tensors lie together in the shards of an export.
    by_layer = sorted(layered.items(), key=lambda item: (item[1].path[:2], item[1].layer))
    return once | dict(by_layer)
