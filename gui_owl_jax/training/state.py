"""The train state, and how it lies on a mesh."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import CheckpointError
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.training import lora as adapters
from gui_owl_jax.training.lora import LoraConfig
from gui_owl_jax.training.optimizer import OptimizerConfig, make_optimizer, path_name


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that a train step reads and writes; also the tree of shardings, or of abstract arrays, in its form.

    Attributes:
      step: int32 scalar, the number of batches taken in. It moves on with every finite step, also when an MRPO batch
        carries no weight and nothing is learned; the optimizer counts its own updates.
      params: the parameter tree.
      opt_state: the optimizer's `OptimizerState`.
    """

    step: Any
    params: Any
    opt_state: Any


def state_shardings(
    config: QwenVLConfig, optimizer: OptimizerConfig, mesh: Mesh, lora: LoraConfig = adapters.OFF
) -> TrainState:
    """Gives a TrainState of NamedShardings: moments lie as their parameters do, scalars on every device."""
    abstract = jax.eval_shape(lambda params: _fresh(optimizer, params), adapters.abstract_params(config, lora))
    params = adapters.param_shardings(config, mesh, lora)
    by_path = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    shapes = _shapes(abstract.params)
    replicated = sharding.replicated(mesh)

    def moment(path: Any, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        # A moment's path ends with its parameter's: `moments/mu/text/norm/scale`.
        parts = path_name(path).split("/")
        names = ("/".join(parts[start:]) for start in range(len(parts)))
        name = next((name for name in names if name in by_path and shapes[name] == leaf.shape), None)
        return replicated if name is None else by_path[name]

    return TrainState(replicated, params, jax.tree_util.tree_map_with_path(moment, abstract.opt_state))


def abstract_state(
    config: QwenVLConfig, optimizer: OptimizerConfig, mesh: Mesh, lora: LoraConfig = adapters.OFF
) -> TrainState:
    """Gives a TrainState of ShapeDtypeStructs with shardings, to restore into or to compile for, without any array."""
    abstract = jax.eval_shape(lambda params: _fresh(optimizer, params), adapters.abstract_params(config, lora))
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        abstract,
        state_shardings(config, optimizer, mesh, lora),
    )


def create_state(
    config: QwenVLConfig, optimizer: OptimizerConfig, mesh: Mesh, params: Any, lora: LoraConfig = adapters.OFF
) -> TrainState:
    """Makes the state at step 0 on the mesh.

    Args:
      config: the model.
      optimizer: the optimizer.
      mesh: where the state will lie.
      params: a PRNG key, for fresh parameters, each created on its own devices; or a parameter tree (numpy or jax),
        which is copied, so that a donating train step cannot eat the caller's arrays.
      lora: when it is on, a given tree has adapters (`lora.init`).

    Raises:
      CheckpointError: when the tree does not have the model's structure or shapes.
      ConfigError: when an optimizer rule fits no parameter.
    """
    shardings = state_shardings(config, optimizer, mesh, lora)
    if isinstance(params, jax.Array):

        def init(key: jax.Array) -> TrainState:
            return _fresh(optimizer, adapters.init(lora, qwen_vl.init_params(config, key), key))

        return jax.jit(init, out_shardings=shardings)(params)
    _check_params(adapters.abstract_params(config, lora), params)
    params = jax.tree.map(lambda leaf, where: jax.device_put(leaf, where, may_alias=False), params, shardings.params)
    rest = jax.jit(make_optimizer(optimizer).init, out_shardings=shardings.opt_state)(params)
    return TrainState(jax.device_put(jnp.int32(0), shardings.step), params, rest)


def _fresh(optimizer: OptimizerConfig, params: Any) -> TrainState:
    return TrainState(jnp.int32(0), params, make_optimizer(optimizer).init(params))


def _check_params(abstract: Any, params: Any) -> None:
    wanted, given = _shapes(abstract), _shapes(params)
    if wanted != given:
        differ = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        lines = [f"{name}: wanted {wanted.get(name)}, given {given.get(name)}" for name in differ[:8]]
        raise CheckpointError(f"the parameters do not fit the model in {len(differ)} places: {'; '.join(lines)}")


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {path_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
