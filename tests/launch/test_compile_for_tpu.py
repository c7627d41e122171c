"""Compiling for TPUs without a TPU: counting, the shipped configs, and that what is too large is refused with why."""

import importlib.util
import math

import pytest

from configs import anchor, pod
from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models.config import get_preset
from launch import common, compile_for_tpu, compile_table, hlo, roofline

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed (extra: tpu)"
)

# A loop of 5 turns over another of 3; an asynchronous gather in three parts; a reduce-scatter as the TPU compiler
# writes it; and an all-reduce outside of all loops, beside one of chips with themselves.
PROGRAM = """HloModule jit_step, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%inner_condition (c: (s32[], f32[8])) -> pred[] {
  %bound = s32[]{:T(128)} constant(3)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

%start (p: bf16[4,16]) -> (bf16[4,16], bf16[8,16]) {
  ROOT %gather.1 = (bf16[4,16], bf16[8,16]) all-gather-start(%p), channel_id=7, replica_groups=[2,2]<=[4]
}

%middle (p: bf16[4,16]) -> bf16[8,16] {
  %gather.2 = (bf16[4,16], bf16[8,16]) all-gather-start(%p), channel_id=7, replica_groups=[2,2]<=[4]
  ROOT %gather.3 = bf16[8,16] all-gather-done(%gather.2), channel_id=7
}

%all-reduce-scatter.1 (p: f32[16]) -> f32[4] {
  %whole = f32[16]{0} all-reduce(%p), channel_id=9, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %own = f32[4]{0} dynamic-slice(%whole, %place)
}

%inner_body (c: (s32[], f32[8])) -> (s32[], f32[8]) {
  %a = (bf16[4,16], bf16[8,16]) fusion(%p), kind=kCustom, calls=%start
  %b = bf16[8,16] fusion(%a), kind=kCustom, calls=%middle
  ROOT %t = (s32[], f32[8]) tuple(%i, %x)
}

%outer_body (c: (s32[], f32[8])) -> (s32[], f32[8]) {
  %loop = (s32[], f32[8]) while(%t), condition=%inner_condition, body=%inner_body
  %scattered = f32[4]{0} fusion(%g), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %u = (s32[], f32[8]) tuple(%i, %x)
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %loop.2 = (s32[], f32[8]) while(%t), condition=%c, body=%outer_body, backend_config={"known_trip_count":{"n":"5"}}
  %alone = f32[8]{0} all-reduce(%p), channel_id=4, replica_groups=[4,1]<=[4], to_apply=%add
  ROOT %norm = f32[8]{0} all-reduce(%p), channel_id=3, replica_groups={{0,1}}, to_apply=%add
}
"""


def test_collectives_are_counted_once_and_as_often_as_they_run():
    found = {one.kind: one for one in hlo.collectives(PROGRAM)}
    assert found["all-gather"] == hlo.Collective("all-gather", 8 * 16 * 2, 15, 2, "bf16")
    assert found["reduce-scatter"] == hlo.Collective("reduce-scatter", 16 * 4, 5, 4, "f32")
    assert found["all-reduce"] == hlo.Collective("all-reduce", 8 * 4, 1, 2, "f32")
    assert hlo.summary(list(found.values()))["all-gather"] == {"count": 15, "bytes": 15 * 256}
    assert found["all-gather"].wire == 15 * 256 / 2
    assert found["all-reduce"].wire == 2 * 32 / 2


def test_flops_by_hand():
    """2 FLOPs per weight and token, and half of the square of attention; published for Qwen3-8B: 200.8 T a step."""
    counted = roofline.forward_flops(get_preset("8b"), 1, 4096, 0)
    weights = 36 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 12288)
    assert counted.text == 2 * weights * 4096
    assert counted.attention == 36 * 4 * 4096 * 4096 * 4097 / 2
    assert counted.vision == counted.vision_attention == 0
    assert 3 * counted.forward == pytest.approx(200.8e12, rel=1e-3)
    sparse = roofline.forward_flops(get_preset("30b-a3b"), 1, 1, 0)
    assert sparse.text / 2 == pytest.approx(2.9e9, rel=0.1)  # "A3B": 3 G weights see a token, 0.3 G of them in the head


def test_estimate_takes_the_longest():
    found = roofline.estimate("v5e:4x4", 16, 16 * 98.5e12, 16 * 197e12, 819e9 / 2, 100e9 / 4)
    assert found == {"compute": 1, "memory": 0.5, "network": 0.25, "step": 1, "mfu": 0.5}
    with pytest.raises(ConfigError, match="v99"):
        roofline.chip("v99:1x1")


@pytest.mark.parametrize(("module", "name"), [(m, name) for m in (anchor, pod) for name in m.NAMES])
def test_shipped_configs_fit_their_pods_shape(module, name):
    config = module.get_config(name)
    chips = math.prod(int(side) for side in config.topology.split(":")[1].split("x"))
    model = compile_for_tpu.model_of(config)
    for section, rows in (("mesh", config.data.rows), ("sampling_mesh", config.sampler.row_buckets[-1])):
        if config[section].data == 0:
            continue  # an anchor samples nothing
        mesh = common.build(sharding.MeshConfig, config[section], section)
        data, fsdp, tensor, expert = sharding.mesh_sizes(mesh, chips)
        assert rows % (data * fsdp * expert) == 0
        assert model.text.kv_heads % tensor == 0 or section == "mesh"
        assert model.vision.width % fsdp == 0, "the tower would lie whole on every chip"
        assert expert == 1 or model.text.moe.experts % expert == 0


def test_configs_cover_what_was_promised():
    sizes = {name.split("-sft-")[0] for name in pod.NAMES if "-sft-" in name}
    assert sizes == {"2b", "4b", "8b", "32b", "30b-a3b", "235b-a22b", "qwen2.5-3b"}
    assert {name.replace("-sft-", "-mrpo-") for name in pod.NAMES} == {n for n in pod.NAMES if "-mrpo-" in n}
    assert pod.get_config("8b-sft-v5e-64-32k").data.token_budget == 32_768
    with pytest.raises(ValueError, match="8b-sft-v5e-64"):
        pod.get_config("8b-sft-v5e-7")


def small(**sampler):
    """The nano model on four chips."""
    config = pod.get_config("8b-mrpo-v5e-16")
    config.topology, config.model.preset = "v5e:2x2", "nano"
    config.mesh.update({"fsdp": 4, "tensor": 1})
    config.sampling_mesh.update({"data": 2, "tensor": 2})
    config.data.update({"rows": 4, "token_budget": 256, "patch_budget": 0})
    config.sampler.update({"row_buckets": (8,), "length_buckets": (256,), "max_new_tokens": 256} | sampler)
    return config


@needs_libtpu
def test_a_step_is_compiled_and_tabulated():
    config = small()
    row = compile_for_tpu.report(compile_for_tpu.train_program(config), config.topology, "O0")
    assert row["fits"] and row["why"] == "" and 0 < row["peak_bytes"] < 2**30
    assert row["chips"] == 4 and row["level"] == "O0"
    assert row["collectives"]["all-gather"]["bytes"] > 0  # weights
    assert row["beside_bytes"] == row["terms"]["weights (f32)"]  # those of the reference
    page = compile_table.document({"nano/train": row})
    assert "| nano/train | v5e:2x2 |" in page and "| yes |" in page


@needs_libtpu
def test_too_large_is_refused_with_the_reason():
    config = small(row_buckets=(1 << 14,), length_buckets=((1 << 15) - 256,))
    row = compile_for_tpu.report(compile_for_tpu.decode_program(config), config.topology, "O0")
    assert not row["fits"] and row["estimate"] is None
    # 2^14 rows of 2^15 tokens, 3 layers, 2 heads of 32, keys and values in two bytes, on 4 chips.
    size = 2**14 * 2**15 * 3 * 2 * 32 * 2 * 2 / 4 / 2**30
    assert f"largest terms, in GiB: keys and values (bf16) {size:.2f}" in row["why"]
    assert "15.75 GiB a chip" in row["why"]
    assert "**no**" in compile_table.line("nano/decode", row)


@needs_libtpu
def test_an_unknown_topology_is_refused():
    config = small()
    config.topology = "v5e:3x5"
    with pytest.raises(ConfigError, match="v5e:3x5"):
        compile_for_tpu.train_program(config)
