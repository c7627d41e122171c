"""The decoder (Qwen3, Qwen3-MoE or Qwen2.5) with DeepStack features behind its first layers, and its KV cache."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from gui_owl_jax.models import rope
from gui_owl_jax.models.config import TextConfig
from gui_owl_jax.models.layers import Embedding, Linear, RMSNorm, scan_layers, stack
from gui_owl_jax.models.moe import ExpertKernel, RouterLoad, Routing, mix_experts, router_load
from gui_owl_jax.ops.attention import attention


class KVCache(NamedTuple):
    """Keys (turned by their rotary angles) and values of all layers, each [layers, B, S, K, H]."""

    k: jax.Array
    v: jax.Array


class Kept(NamedTuple):
    """What a run of layers keeps beside its output; each with a leading layer axis, or None where not asked for.

    Attributes:
      kv: keys and values, [layers, B, L, K, H].
      load: of the experts.
      router_logits: f32 [layers, B, L, E].
    """

    kv: KVCache | None = None
    load: RouterLoad | None = None
    router_logits: jax.Array | None = None


class DecoderLayer(nnx.Module):
    """h += attention(norm(h)); h += MLP(norm(h)), the MLP a SwiGLU or a mixture of such experts."""

    def __init__(self, config: TextConfig, *, rngs: nnx.Rngs):
        width, inner, kv = config.width, config.heads * config.head_width, config.kv_heads * config.head_width
        residual = (2 * config.layers) ** -0.5
        self.config = config
        self.input_norm = RMSNorm(width, config.norm_eps)
        self.q = Linear(width, inner, ("embed", "heads"), rngs=rngs, bias=config.qkv_bias)
        self.k = Linear(width, kv, ("embed", "kv_heads"), rngs=rngs, bias=config.qkv_bias)
        self.v = Linear(width, kv, ("embed", "kv_heads"), rngs=rngs, bias=config.qkv_bias)
        self.o = Linear(inner, width, ("heads", "embed"), rngs=rngs, bias=False, scale=residual)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_width, config.norm_eps)
            self.k_norm = RMSNorm(config.head_width, config.norm_eps)
        self.post_norm = RMSNorm(width, config.norm_eps)
        if config.moe:
            experts, hidden = config.moe.experts, config.moe.width
            gate_up, down = ("expert", "embed", None, "expert_mlp"), ("expert", "expert_mlp", "embed")
            self.router = Linear(width, experts, ("embed", None), rngs=rngs, bias=False)
            self.gate_up = ExpertKernel((experts, width, 2, hidden), gate_up, rngs=rngs)
            self.down: Any = ExpertKernel((experts, hidden, width), down, rngs=rngs, scale=residual)
        else:
            self.gate = Linear(width, config.mlp_width, ("embed", "mlp"), rngs=rngs, bias=False)
            self.up = Linear(width, config.mlp_width, ("embed", "mlp"), rngs=rngs, bias=False)
            self.down = Linear(config.mlp_width, width, ("mlp", "embed"), rngs=rngs, bias=False, scale=residual)

    def project(self, h: jax.Array, cos_sin: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns q [B, L, N, H], k and v [B, L, K, H] of h [B, L, D]: normed per head, then turned."""
        x = self.input_norm(h)
        q, k, v = (y.reshape(*y.shape[:2], -1, self.config.head_width) for y in (self.q(x), self.k(x), self.v(x)))
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return rope.rotate(q, cos_sin), rope.rotate(k, cos_sin), v

    def finish(self, h: jax.Array, mixed: jax.Array) -> tuple[jax.Array, Routing | None]:
        """Adds the attention's output [B, L, N, H] and the MLP to h [B, L, D]; says where its tokens went, if any."""
        h = h + self.o(mixed.reshape(*mixed.shape[:2], -1))
        x = self.post_norm(h)
        if self.config.moe:
            y, routing = mix_experts(x, self.router, self.gate_up, self.down, self.config.moe.per_token)
            return h + y, routing
        return h + self.down(jax.nn.silu(self.gate(x)) * self.up(x)), None


def place_features(h: jax.Array, features: jax.Array, visual_index: jax.Array, *, add: bool) -> jax.Array:
    """Gives each image pad its feature: h [B, L, D], features [B, M, D], visual_index int [B, L], -1 for other tokens.

    With `add` the feature is added to h, else it replaces h. Index (-1, 0, 1, -1): h0, f0, f1, h3.
    """
    gathered = jax.vmap(lambda f, i: f[i])(features, jnp.maximum(visual_index, 0))
    chosen = (visual_index >= 0)[..., None]
    return jnp.where(chosen, h + gathered if add else gathered, h)


def layer_then_deepstack(h: jax.Array, run_layer: Any, features: jax.Array, visual_index: jax.Array) -> tuple:
    """Runs a layer and adds its DeepStack level to what comes out."""
    h, y = run_layer(h)
    return place_features(h, features, visual_index, add=True), y


class Decoder(nnx.Module):
    """Embedding, layers and final norm; the head lives with `gui_owl_jax.models.qwen_vl`."""

    def __init__(self, config: TextConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embed = Embedding(config.vocab_size, config.width, ("vocab", "embed"), rngs=rngs)
        self.layers = stack(lambda r: DecoderLayer(config, rngs=r), config.layers, rngs)
        self.norm = RMSNorm(config.width, config.norm_eps)

    def __call__(
        self,
        h: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        deepstack: jax.Array,
        visual_index: jax.Array,
        *,
        remat: str | bool = False,
        implementation: str = "xla",
        keep: tuple[str, ...] = (),
    ) -> tuple[jax.Array, Kept]:
        """Runs all layers over h [B, L, D].

        The layers are scanned in two runs: the first X with one DeepStack level each, then the rest. `keep` names the
        fields of `Kept` that are wanted; those of the experts stay None in a dense model.

        Returns:
          [B, L, D] behind the final norm, and what was kept of every layer.
        """
        cos_sin = rope.text_rope(self.config, positions)
        levels = deepstack.shape[0]

        def run(layer: DecoderLayer, h: jax.Array) -> tuple[jax.Array, Kept]:
            q, k, v = layer.project(h, cos_sin)
            mixed = attention(q, k, v, segment_ids=segment_ids, causal=True, implementation=implementation)
            h, routing = layer.finish(h, mixed)
            load = logits = None
            if routing and "load" in keep:
                load = router_load(routing, segment_ids.ravel() > 0)
            if routing and "router_logits" in keep:
                logits = routing.logits.reshape(*h.shape[:2], -1)
            return h, Kept(KVCache(k, v) if "kv" in keep else None, load, logits)

        def with_deepstack(layer: DecoderLayer, h: jax.Array, features: jax.Array) -> tuple:
            return layer_then_deepstack(h, lambda h: run(layer, h), features, visual_index)

        kept = []
        if levels:
            h, part = scan_layers(with_deepstack, self.layers, h, deepstack, stop=levels, remat=remat)
            kept.append(part)
        if levels < self.config.layers:
            h, part = scan_layers(lambda layer, h, _: run(layer, h), self.layers, h, start=levels, remat=remat)
            kept.append(part)
        return self.norm(h), jax.tree.map(lambda *parts: jnp.concatenate(parts), *kept)

    def decode(self, h: jax.Array, positions: jax.Array, write_index: jax.Array, cache: KVCache) -> tuple:
        """Runs one token per row, h [B, 1, D], positions [B, 1, 3]; see `qwen_vl.decode_step`."""
        cos_sin = rope.text_rope(self.config, positions)
        rows = jnp.arange(h.shape[0])
        slots = jnp.arange(cache.k.shape[2])
        mask = (slots[None, :] <= write_index[:, None])[:, None, None, :]

        def call(layer: DecoderLayer, carry: tuple[jax.Array, KVCache], index: jax.Array) -> tuple:
            h, cache = carry
            q, k, v = layer.project(h, cos_sin)
            # The cache is carried, not scanned over, so that XLA writes one token in place instead of copying it.
            cache = KVCache(
                cache.k.at[index, rows, write_index].set(k[:, 0].astype(cache.k.dtype)),
                cache.v.at[index, rows, write_index].set(v[:, 0].astype(cache.v.dtype)),
            )
            mixed = attention(q, cache.k[index].astype(q.dtype), cache.v[index].astype(q.dtype), mask=mask)
            return (layer.finish(h, mixed)[0], cache), None

        (h, cache), _ = scan_layers(call, self.layers, (h, cache), jnp.arange(self.config.layers))
        return self.norm(h), cache
