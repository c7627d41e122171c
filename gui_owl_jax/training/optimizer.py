"""AdamW and Muon with schedules, clipping, and parameter-group rules as short lists of (regex, value).

A rule's regex must match the whole path of a parameter, its dictionary keys joined by slashes
(`text/layers/q/kernel`); the first rule that matches decides. A rule that never decides anything is a
`ConfigError`: it is a misspelt path or stands behind a wider rule, and would otherwise be ignored in silence.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from gui_owl_jax.agent.errors import ConfigError

Params = Any  # a nested dict of arrays
Rules = Sequence[tuple[str, float]]

OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("cosine", "linear", "constant")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """What the optimizer does; all fields are plain values, so that a config file can state them.

    Attributes:
      name: "adamw" or "muon".
      learning_rate: the peak of the schedule, reached at the end of the warmup.
      schedule: "cosine", "linear" (both fall to `end_fraction` of the peak at `total_steps`) or "constant".
      warmup_steps: updates over which the rate rises linearly; the first update already has peak / warmup_steps.
      total_steps: updates after which the rate has reached its end; not read by "constant".
      end_fraction: the last rate as a share of the peak.
      clip_norm: gradients of a larger global norm are scaled down to it; 0 switches clipping off.
      b1: decay of Adam's first moment.
      b2: decay of Adam's second moment.
      eps: added to Adam's denominator, and to Muon's norms.
      learning_rate_rules: (regex, multiplier of the learning rate); 1 where none matches, 0 freezes.
      weight_decay_rules: (regex, decay); 0 where none matches. Decoupled: an update subtracts rate * decay * parameter.
      muon_pattern: regex of the parameters that Muon treats as (stacks of) matrices; Adam takes the others.
      muon_beta: decay of Muon's momentum.
      muon_consistent_rms: None scales by sqrt(max(1, out/in)); a float (0.2) by float * sqrt(max(in, out)), which gives
        updates the size of Adam's (Liu et al. 2025, arXiv 2502.16982).
    """

    name: str = "adamw"
    learning_rate: float = 1e-3
    schedule: str = "cosine"
    warmup_steps: int = 0
    total_steps: int = 1000
    end_fraction: float = 0.0
    clip_norm: float = 1.0
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    learning_rate_rules: Rules = ()
    weight_decay_rules: Rules = ()
    muon_pattern: str = r"(vision/(patch_embed|blocks|merger|deepstack)|text/layers)/.*kernel"
    muon_beta: float = 0.95
    muon_consistent_rms: float | None = None

    def __post_init__(self) -> None:
        for field in ("learning_rate_rules", "weight_decay_rules"):
            rules = tuple((str(regex), float(value)) for regex, value in getattr(self, field))
            object.__setattr__(self, field, rules)
            if any(value < 0 for _, value in rules):
                raise ConfigError(f"optimizer.{field}: values must be at least 0, got {rules}")
        checks = {
            "name": self.name in OPTIMIZERS,
            "schedule": self.schedule in SCHEDULES,
            "learning_rate": self.learning_rate > 0,
            "warmup_steps": self.warmup_steps >= 0,
            "total_steps": self.schedule == "constant" or self.total_steps > self.warmup_steps,
            "end_fraction": 0 <= self.end_fraction <= 1,
            "clip_norm": self.clip_norm >= 0,
        }
        for field, good in checks.items():
            if not good:
                raise ConfigError(f"optimizer.{field}: {getattr(self, field)!r} cannot work in {self}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OptimizerState:
    """What the optimizer remembers.

    Attributes:
      count: int32 scalar, the updates applied; the schedule follows it.
      moments: of the trained parameters.
    """

    count: jax.Array
    moments: optax.OptState


def learning_rate(config: OptimizerConfig, count: jax.Array | int) -> jax.Array:
    """Gives the learning rate (f32 scalar) of the update that follows `count` applied ones.

    Example, peak 1, warmup 2, linear to 0 at 6: counts 0..6 give 0.5, 1, 1, 0.75, 0.5, 0.25, 0.
    """
    count = jnp.asarray(count, jnp.float32)
    warmup = jnp.minimum(1.0, (count + 1) / config.warmup_steps) if config.warmup_steps else jnp.float32(1)
    if config.schedule == "constant":
        return config.learning_rate * warmup
    progress = (count - config.warmup_steps) / (config.total_steps - config.warmup_steps)
    progress = jnp.clip(progress, 0.0, 1.0)
    decay = 0.5 * (1 + jnp.cos(jnp.pi * progress)) if config.schedule == "cosine" else 1 - progress
    return config.learning_rate * warmup * (config.end_fraction + (1 - config.end_fraction) * decay)


def path_name(path: Sequence[Any]) -> str:
    """Spells a tree path as `text/layers/q/kernel`."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def apply_rules(rules: Rules, params: Params, default: float, field: str) -> Params:
    """Gives every parameter the value of the first rule that matches its whole path.

    Args:
      rules: (regex, value) pairs.
      params: nested dict whose leaves are arrays or ShapeDtypeStructs.
      default: the value where no rule matches.
      field: the config field the rules come from, for messages.

    Returns:
      The same tree with floats as leaves.

    Raises:
      ConfigError: for a regex that does not compile, or that decides nothing.
    """
    try:
        compiled = [(re.compile(regex), value) for regex, value in rules]
    except re.error as error:
        raise ConfigError(f"{field}: {error} in one of the regexes {[regex for regex, _ in rules]}") from error
    paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    firsts = [next((i for i, (regex, _) in enumerate(compiled) if regex.fullmatch(path)), None) for path in paths]
    for i, (regex, _) in enumerate(compiled):
        if i not in firsts:
            shadowed = any(regex.fullmatch(path) for path in paths)
            why = "matches only what earlier rules took" if shadowed else f"matches none of the parameters {paths}"
            raise ConfigError(f"{field}: the rule {regex.pattern!r} {why}; correct it, move it or take it out")
    values = [default if first is None else compiled[first][1] for first in firsts]
    return jax.tree.unflatten(jax.tree.structure(params), values)


def multipliers(config: OptimizerConfig, params: Params) -> Params:
    """Gives the learning-rate multiplier of every parameter (floats in the tree of `params`); 0 means frozen."""
    return apply_rules(config.learning_rate_rules, params, 1.0, "optimizer.learning_rate_rules")


def split_frozen(config: OptimizerConfig, params: Params) -> tuple[Params, Params]:
    """Splits a tree into (trained, frozen): each has None where the leaf belongs to the other.

    None has no leaves for JAX, so a gradient with respect to the first tree builds no backward pass for the second.
    """
    factors = multipliers(config, params)
    trained = jax.tree.map(lambda leaf, factor: leaf if factor > 0 else None, params, factors)
    frozen = jax.tree.map(lambda leaf, factor: None if factor > 0 else leaf, params, factors)
    if not jax.tree.leaves(trained):
        raise ConfigError("optimizer.learning_rate_rules: every parameter is frozen, nothing is left to train")
    return trained, frozen


def merge_frozen(trained: Params, frozen: Params) -> Params:
    """Puts the two trees of `split_frozen` together again."""
    return jax.tree.map(lambda left, right: right if left is None else left, trained, frozen, is_leaf=_is_none)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Builds the optimizer as an Optax transformation over the whole parameter tree.

    `init(params)` and `update(grads, state, params)` take the full tree, so that rules are read against every path.
    Frozen parameters have no moments; their gradients are not looked at (None will do) and their updates are None in
    the returned tree: add it with `apply_updates`.

    Sources: AdamW, Loshchilov and Hutter, arXiv 1711.05101; Muon, Jordan et al. 2024 as in `optax.contrib.muon`,
    whose Newton-Schulz iteration runs on the last two axes: the leading axis of stacked layers is a batch axis.

    Raises:
      ConfigError: from `init` and `update`, when a rule does not fit the parameters.
    """

    def init(params: Params) -> OptimizerState:
        apply_rules(config.weight_decay_rules, params, 0.0, "optimizer.weight_decay_rules")
        trained, _ = split_frozen(config, params)
        return OptimizerState(jnp.zeros([], jnp.int32), _direction(config).init(trained))

    def update(grads: Params, state: OptimizerState, params: Params | None = None) -> tuple[Params, OptimizerState]:
        if params is None:
            raise ValueError("this optimizer needs the parameters: update(grads, state, params)")
        factors = multipliers(config, params)
        decays = apply_rules(config.weight_decay_rules, params, 0.0, "optimizer.weight_decay_rules")
        trained, _ = split_frozen(config, params)
        # Structure follows `trained`; whatever stands in the gradients at a frozen place is dropped.
        grads = jax.tree.map(lambda factor, grad: grad if factor > 0 else None, factors, grads, is_leaf=_is_none)
        direction, moments = _direction(config).update(clip_by_norm(config, grads), state.moments, trained)
        rate = learning_rate(config, state.count)
        updates = jax.tree.map(
            lambda param, factor, decay, step: None
            if step is None
            else (-rate * factor * (step + decay * param.astype(step.dtype))).astype(param.dtype),
            params,
            factors,
            decays,
            direction,
        )
        return updates, OptimizerState(state.count + 1, moments)

    return optax.GradientTransformation(init, update)


def apply_updates(params: Params, updates: Params) -> Params:
    """Adds updates to parameters; where the update is None the parameter is handed on untouched."""
    return jax.tree.map(lambda param, update: param if update is None else param + update, params, updates)


def clip_by_norm(config: OptimizerConfig, grads: Params) -> Params:
    """Scales gradients down to the global norm `config.clip_norm`; smaller ones pass unchanged."""
    if config.clip_norm == 0:
        return grads
    scale = jnp.minimum(1.0, config.clip_norm / jnp.maximum(global_norm(grads), 1e-30))
    return jax.tree.map(lambda grad: grad * scale.astype(grad.dtype), grads)


def global_norm(tree: Params) -> jax.Array:
    """Gives the square root of the summed squares of all leaves (f32 scalar)."""
    squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(jnp.sum(jnp.stack(squares)))


def _direction(config: OptimizerConfig) -> optax.GradientTransformation:
    """The direction of steepest ascent that the optimizer follows downwards, before rate, multiplier and decay."""
    if config.name == "adamw":
        return optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps)
    muon = optax.contrib.muon(
        learning_rate=1.0,
        beta=config.muon_beta,
        eps=config.eps,
        adam_b1=config.b1,
        adam_b2=config.b2,
        muon_weight_dimension_numbers=lambda params: _matrix_axes(config, params),
        consistent_rms=config.muon_consistent_rms,
    )
    return optax.chain(muon, optax.scale(-1.0))  # optax.contrib.muon gives the descent, this the ascent


def _matrix_axes(config: OptimizerConfig, params: Params) -> Params:
    """Marks Muon's matrices: kernels are [..., in, out]; None leaves a parameter to Adam."""
    is_matrix = apply_rules([(config.muon_pattern, 1.0)], params, 0.0, "optimizer.muon_pattern")

    def axes(path: Any, leaf: jax.Array, matrix: float) -> optax.contrib.MuonDimensionNumbers | None:
        # The gate and up matrices of experts lie side by side as [..., in, 2, out].
        inputs = -3 if path_name(path).endswith("gate_up/kernel") else -2
        return optax.contrib.MuonDimensionNumbers(inputs, -1) if matrix and leaf.ndim >= 2 else None

    return jax.tree_util.tree_map_with_path(axes, params, is_matrix)


def _is_none(node: Any) -> bool:
    return node is None
