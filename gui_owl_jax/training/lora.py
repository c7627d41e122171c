"""LoRA: low-rank adapters beside frozen kernels (Hu et al. 2021, arXiv 2106.09685).

A kernel W [..., in, out] whose path matches a pattern gets A [..., in, r] and B [..., r, out]; the model computes with
W + (alpha / r) A B. A tree with adapters is the model's own with one more subtree, "lora", which repeats the paths:
`lora/text/layers/q/kernel/a`. It is trained, sharded and stored like any other; `merge` makes the model's tree of it,
before the forward pass and for good on export.

Why not qwix: it finds kernels by intercepting the products of a module that it traces with example inputs, and keeps
the adapters in that module. Here parameters are a plain dict, layers are stacked and scanned, and products are made
outside of the modules; what is left to do is the sum above, which also covers stacked layers and experts.

What it costs: the sum is differentiated like any other op, so a gradient of each adapted W exists until those of its A
and B are made of it. Optimizer moments exist for A and B only.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.training.optimizer import OptimizerConfig, path_name

SUBTREE = "lora"


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Which kernels get adapters.

    Attributes:
      rank: r; 0 switches LoRA off.
      alpha: A B is multiplied by alpha / r.
      pattern: regex that must match the whole path of a kernel.
    """

    rank: int = 0
    alpha: float = 16.0
    pattern: str = r"text/layers/(q|k|v|o|gate|up|down)/kernel"

    def __post_init__(self) -> None:
        if self.rank < 0 or self.alpha <= 0:
            raise ConfigError(f"lora: rank must be at least 0 and alpha positive, got {self}")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(f"lora.pattern: {error} in {self.pattern!r}") from error


OFF = LoraConfig()


def init(config: LoraConfig, params: Any, key: jax.Array) -> Any:
    """Returns `params` with fresh adapters: A normal with deviation in ** -0.5, B zero, so that nothing changes yet.

    Raises:
      ConfigError: the pattern matches no kernel, or something else than a kernel.
    """
    if not config.rank:
        return params
    shapes = _shapes(config, params)
    keys = dict(zip(shapes, jax.random.split(key, len(shapes))))
    adapters = {
        path: {"a": jax.random.normal(keys[path], a) * a[-2] ** -0.5, "b": jnp.zeros(b)}
        for path, (a, b) in shapes.items()
    }
    return {**params, SUBTREE: _nest(adapters)}


def merge(config: LoraConfig, params: Any) -> Any:
    """Returns the model's own tree: W + (alpha / r) A B, summed in float32 and in the dtype of W, without adapters.

    A tree without adapters is returned as it is.
    """
    if SUBTREE not in params:
        return params
    scale = config.alpha / config.rank
    adapters = _flatten(params[SUBTREE])

    def add(path: Any, kernel: jax.Array) -> jax.Array:
        name = path_name(path)
        if f"{name}/a" not in adapters:
            return kernel
        product = jnp.matmul(adapters[f"{name}/a"], adapters[f"{name}/b"], preferred_element_type=jnp.float32)
        return (kernel.astype(jnp.float32) + scale * product).astype(kernel.dtype)

    return jax.tree_util.tree_map_with_path(add, {name: tree for name, tree in params.items() if name != SUBTREE})


def abstract_params(model: QwenVLConfig, config: LoraConfig = OFF) -> Any:
    """Returns the tree of `init` as ShapeDtypeStructs; with rank 0 that of `qwen_vl.abstract_params`."""
    return jax.eval_shape(lambda params: init(config, params, jax.random.key(0)), qwen_vl.abstract_params(model))


def param_shardings(model: QwenVLConfig, mesh: Mesh, config: LoraConfig = OFF) -> Any:
    """Returns the tree of NamedShardings: A lies like the rows of its kernel, B like its columns."""
    axes = qwen_vl.logical_axes(model)
    if config.rank:
        by_path = _flatten(axes)
        paths = _shapes(config, qwen_vl.abstract_params(model))
        own = {path: by_path[path] for path in paths}
        adapters = {
            path: {"a": (*names[:-1], None), "b": (*names[:-2], None, names[-1])} for path, names in own.items()
        }
        axes = {**axes, SUBTREE: _nest(adapters)}
    return sharding.tree_shardings(axes, abstract_params(model, config), mesh)


def train_adapters_only(optimizer: OptimizerConfig, config: LoraConfig) -> OptimizerConfig:
    """Returns the optimizer's config with everything but the adapters frozen; unchanged with rank 0.

    Rules it already has go first: ("vision/merger/.*", 1.0) trains the merger in full beside the adapters.
    """
    if not config.rank:
        return optimizer
    rules = (*optimizer.learning_rate_rules, (f"{SUBTREE}/.*", 1.0), (".*", 0.0))
    return dataclasses.replace(optimizer, learning_rate_rules=rules)


def _shapes(config: LoraConfig, params: Any) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Path of each adapted kernel -> shapes of A and B."""
    found = {path: leaf.shape for path, leaf in _flatten(params).items() if re.fullmatch(config.pattern, path)}
    if not found:
        raise ConfigError(f"lora.pattern: {config.pattern!r} matches none of the parameters {sorted(_flatten(params))}")
    for path in found:
        # The experts' gate_up has two matrices in one, its axes are not [..., in, out].
        if not path.endswith("/kernel") or path.endswith("gate_up/kernel"):
            raise ConfigError(f"lora.pattern: {config.pattern!r} matches {path}, which is no kernel [..., in, out]")
    return {path: ((*shape[:-1], config.rank), (*shape[:-2], config.rank, shape[-1])) for path, shape in found.items()}


def _flatten(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: isinstance(node, tuple))
    return {path_name(path): leaf for path, leaf in leaves}


def _nest(by_path: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, leaf in by_path.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree
