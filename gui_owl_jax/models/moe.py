"""Mixture of experts: each token visits its k likeliest experts. No capacity, no dropped token, no shared expert.

Source: the published Qwen3-VL-MoE models; the load-balancing loss is that of the Switch Transformer (arXiv 2101.03961)
over all layers together.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from gui_owl_jax.models.layers import Axes, Linear, parameter
from gui_owl_jax.ops import expert_parallel, partition


class Routing(NamedTuple):
    """Where tokens go.

    Attributes:
      experts: int32 [T, k], the experts of each token, likeliest first.
      weights: f32 [T, k], their shares of the output, summing to 1.
      logits: f32 [T, E].
    """

    experts: jax.Array
    weights: jax.Array
    logits: jax.Array


class RouterLoad(NamedTuple):
    """How the real tokens of a batch spread over the experts of one layer (or, stacked, of all).

    Attributes:
      assigned: f32 [..., E], token visits per expert.
      probability: f32 [..., E], sum over tokens of the router's probability.
      tokens: f32 [...], number of real tokens.
    """

    assigned: jax.Array
    probability: jax.Array
    tokens: jax.Array


class ExpertKernel(nnx.Module):
    """One matrix per expert, [experts, inputs, ...]."""

    def __init__(self, shape: tuple[int, ...], axes: Axes, *, rngs: nnx.Rngs, scale: float = 1.0):
        """Entries start normal with deviation scale / sqrt(inputs)."""
        self.kernel = parameter(jax.random.normal(rngs.params(), shape) * (scale * shape[1] ** -0.5), axes)


def route(logits: jax.Array, per_token: int) -> Routing:
    """Chooses experts by the softmax over all of them and shares their weights out anew; logits [T, E]."""
    logits = logits.astype(jnp.float32)
    top, experts = jax.lax.top_k(jax.nn.softmax(logits, axis=-1), per_token)
    return Routing(experts, share_out(top), logits)


def share_out(top: jax.Array) -> jax.Array:
    """Makes the probabilities [T, k] of the chosen experts sum to 1."""
    return top / jnp.sum(top, axis=-1, keepdims=True)


def split_gate_up(joint: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns gate and up, each [N, I], of a product [N, 2, I]."""
    return joint[:, 0], joint[:, 1]


def run_experts(x: jax.Array, chosen: jax.Array, weights: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
    """Returns the weighted sum of each token's experts, one grouped matmul over all of them.

    Token visits are sorted by expert, so that each expert reads consecutive rows. Two tokens that visit the experts
    (1, 0) and (1, 2) become the rows 0b 0a 1a 1b (a: first visit) with group sizes 1, 2, 1.

    Args:
      x: [T, D].
      chosen: int [T, k], each token's experts; E stands for one that is not here, whose visits give 0.
      weights: f32 [T, k].
      gate_up: [E, D, 2, I], the gate first.
      down: [E, I, D].

    Returns:
      [T, D] in the dtype of x.
    """
    experts, inputs, _, inner = gate_up.shape
    visits, per_token = chosen.ravel(), chosen.shape[1]
    here = visits < experts
    order = jnp.argsort(visits, stable=True)
    sizes = jnp.bincount(visits, length=experts).astype(jnp.int32)
    # Rows behind the last expert's belong to nobody: what a grouped matmul makes of them is undefined.
    rows = jnp.where(here[order][:, None], x[order // per_token], 0)
    joint = jax.lax.ragged_dot(rows, gate_up.reshape(experts, inputs, 2 * inner).astype(x.dtype), sizes)
    gate, up = split_gate_up(joint.reshape(-1, 2, inner))
    out = jax.lax.ragged_dot(jax.nn.silu(gate) * up, down.astype(x.dtype), sizes)
    back = jnp.where(here[:, None], out[jnp.argsort(order)], 0).reshape(-1, per_token, out.shape[-1])
    return jnp.sum(back * weights[..., None].astype(x.dtype), axis=1)


def mix_experts(
    x: jax.Array, router: Linear, gate_up: ExpertKernel, down: ExpertKernel, per_token: int
) -> tuple[jax.Array, Routing]:
    """Maps [B, L, D] to [B, L, D] and says where the B * L tokens went."""
    flat = x.reshape(-1, x.shape[-1])
    routing = route(router(flat), per_token)
    arguments = (flat, routing.experts, routing.weights, gate_up.kernel[...], down.kernel[...])
    mesh = partition.current_mesh()
    y = run_experts(*arguments) if mesh is None else expert_parallel.run_on_mesh(run_experts, mesh, *arguments)
    return y.reshape(x.shape), routing


def router_load(routing: Routing, real: jax.Array) -> RouterLoad:
    """Counts the visits of the real tokens; real bool [T], false for padding."""
    weight = real.astype(jnp.float32)
    experts = routing.logits.shape[-1]
    visits = jnp.broadcast_to(weight[:, None], routing.experts.shape)
    assigned = jnp.zeros(experts, jnp.float32).at[routing.experts.ravel()].add(visits.ravel())
    probability = jnp.einsum("te,t->e", jax.nn.softmax(routing.logits, axis=-1), weight)
    return RouterLoad(assigned, probability, jnp.sum(weight))


def balance_loss(load: RouterLoad) -> jax.Array:
    """Returns the load-balancing loss: k where all experts are visited alike, more where some are preferred.

    With f_e the visits and p_e the mean probability of expert e, per token and over all layers together:
    E * sum_e f_e p_e.

    Args:
      load: of all layers, stacked: assigned and probability [layers, E], tokens [layers].
    """
    rows = jnp.maximum(jnp.sum(load.tokens), 1.0)
    share = jnp.sum(load.assigned, axis=0) / rows
    probability = jnp.sum(load.probability, axis=0) / rows
    return share.shape[-1] * jnp.sum(jax.lax.stop_gradient(share) * probability)


def router_metrics(load: RouterLoad) -> dict[str, jax.Array]:
    """Says how evenly a batch used the experts; load as for `balance_loss`.

    Returns:
      `router/balance_loss`; `max_router/load`, the visits of the busiest expert of any layer, relative to an even
      spread; `router/idle`, the share of experts that nobody visited; `router/entropy`, of the mean probabilities,
      relative to its maximum.
    """
    experts = load.assigned.shape[-1]
    visits = load.assigned / jnp.maximum(jnp.sum(load.assigned, axis=-1, keepdims=True), 1.0)
    mean = load.probability / jnp.maximum(load.tokens[:, None], 1.0)
    entropy = -jnp.sum(mean * jnp.log(jnp.maximum(mean, 1e-20)), axis=-1)
    return {
        "router/balance_loss": balance_loss(load),
        "max_router/load": jnp.max(visits) * experts,
        "router/idle": jnp.mean((load.assigned == 0).astype(jnp.float32)),
        "router/entropy": jnp.mean(entropy) / jnp.log(experts),
    }
