from __future__ import annotations

import gzip
import json
import random

import pytest

from data.benchmarks import read
from data.benchmarks.android_control_records import extract_screenshots
from data.benchmarks.tfrecord import crc32c, parse_example, read_records
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.benchmark import Box


@pytest.fixture
def forest(proto_field):
    """A serialised accessibility forest with one window; nodes are (box, numbers of the flags that are set)."""

    def make(*nodes):
        def node(box, flags):
            rect = b"".join(proto_field(index + 1, value) for index, value in enumerate(box))
            text = proto_field(7, b"a text") + proto_field(30, 4)  # fields that nobody reads
            return proto_field(2, rect) + text + b"".join(proto_field(flag, 1) for flag in flags)

        tree = b"".join(proto_field(1, node(*each)) for each in nodes)
        return proto_field(1, proto_field(5, b"title") + proto_field(11, tree))

    return make


CLICKABLE, EDITABLE, HELD, VISIBLE = 14, 15, 19, 23


@pytest.fixture
def episode(forest):
    def make(number=5, **changes):
        actions = [
            {"action_type": "click", "x": 108, "y": 240},
            {"action_type": "scroll", "direction": "down"},
            {"action_type": "wait"},
        ]
        tree = forest(
            ((0, 0, 1080, 2400), [VISIBLE]),
            ((100, 200, 300, 400), [CLICKABLE, VISIBLE]),
            ((-20, 500, 40, 600), [EDITABLE, VISIBLE]),
            ((1, 2, 3, 4), [HELD]),
            ((5, 5, 5, 9), [HELD, VISIBLE]),
        )
        return {
            "episode_id": [number],
            "goal": ["Order tea"],
            "screenshots": [b"png0", b"png1", b"png2", b"png3"],
            "accessibility_trees": [tree] * 4,
            "screenshot_widths": [1080] * 4,
            "screenshot_heights": [2400] * 4,
            "actions": [json.dumps(action) for action in actions],
            "step_instructions": ["tap tea", "look down", "wait"],
            **changes,
        }

    return make


def test_steps_of_an_episode(tmp_path, write_records, episode):
    write_records(tmp_path / "android_control-00000-of-00001", [episode()])
    high, low = (read(f"android_control_{mode}", tmp_path) for mode in ("high", "low"))
    assert high.problems == low.problems == ()
    assert [item.item_id for item in high.items] == ["5_0", "5_1", "5_2"]
    first, second, third = low.items
    assert first.target.action == Action("click", coordinate=(100, 100))
    assert first.target.boxes == (Box(100, 200, 300, 400), Box(-20, 500, 40, 600))
    assert second.target.action == Action("swipe", (500, 750), (500, 250))
    assert second.target.boxes == ()
    assert third.facets == {"action": "wait", "episode": "5"}
    assert third.history == ("tap tea", "look down")
    assert third.instruction == "Order tea\nNext step: wait"
    assert high.items[2].instruction == "Order tea"
    assert third.size == (1080, 2400)


def test_screenshots_are_extracted_to_the_names_that_items_have(tmp_path, write_records, episode):
    write_records(tmp_path / "android_control-00000-of-00001", [episode(), episode(6)])
    assert extract_screenshots(tmp_path, tmp_path / "images") == 6
    for item in read("android_control_low", tmp_path).items:
        step = item.item_id.split("_")[1]
        assert (tmp_path / "images" / item.image).read_bytes() == f"png{step}".encode()


def test_only_the_test_split_is_read_where_there_are_splits(tmp_path, write_records, episode):
    write_records(tmp_path / "android_control-00000-of-00001", [episode(), episode(6), episode(7)])
    (tmp_path / "splits.json").write_text('{"train": [5], "test": [6, "7"]}')
    assert {item.facets["episode"] for item in read("android_control_high", tmp_path).items} == {"6", "7"}
    (tmp_path / "splits.json").write_text('{"train": [5]}')
    with pytest.raises(DataError, match="splits.json"):
        read("android_control_high", tmp_path)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"screenshots": [b"one"]}, "bad_field"),
        ({"episode_id": []}, "missing_field"),
        ({"goal": [3]}, "bad_field"),
        ({"step_instructions": [b"\xff", b"b", b"c"]}, "bad_field"),
        ({"screenshot_widths": [1080.5] * 4}, "bad_field"),
    ],
)
def test_a_malformed_episode_is_one_problem(tmp_path, write_records, episode, changes, kind):
    write_records(tmp_path / "android_control-00000-of-00001", [episode(4, **changes), episode()])
    benchmark = read("android_control_high", tmp_path)
    assert len(benchmark.items) == 3
    assert [(problem.kind, problem.where) for problem in benchmark.problems] == [
        (kind, "android_control-00000-of-00001[0]")
    ]


def test_a_malformed_step_is_one_problem(tmp_path, write_records, episode):
    actions = ["{", json.dumps({"action_type": "fly"}), json.dumps({"action_type": "click", "x": 1, "y": 2})]
    trees = [b"", b"", b"\xff\xff", b""]
    write_records(tmp_path / "android_control-00000-of-00001", [episode(actions=actions, accessibility_trees=trees)])
    benchmark = read("android_control_high", tmp_path)
    assert benchmark.items == ()
    assert [problem.kind for problem in benchmark.problems] == ["bad_field", "unknown_action", "bad_field"]


def test_a_damaged_record_costs_itself_alone(tmp_path, frame_record, make_example, episode):
    records = [frame_record(make_example(episode(number))) for number in (1, 2, 3)]
    spoilt = bytearray(records[1])
    spoilt[40] ^= 1
    (tmp_path / "android_control-0").write_bytes(gzip.compress(records[0] + bytes(spoilt) + records[2]))
    benchmark = read("android_control_high", tmp_path)
    assert {item.facets["episode"] for item in benchmark.items} == {"1", "3"}
    (problem,) = benchmark.problems
    assert (problem.kind, problem.fatal) == ("damaged_record", True)
    assert "record 1: its checksum is wrong" in problem.detail


def damaged(data: bytes, how: str) -> bytes:
    if how == "length":
        return gzip.compress(bytes([data[0] ^ 1]) + data[1:])
    if how == "cut_record":
        return gzip.compress(data[:-3])
    if how == "cut_header":
        return gzip.compress(data[:7])
    if how == "cut_stream":
        return gzip.compress(data)[:-12]
    return data  # not compressed


@pytest.mark.parametrize("how", ["length", "cut_record", "cut_header", "cut_stream", "plain"])
def test_what_cannot_be_framed_ends_a_file_with_an_error(tmp_path, frame_record, how):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(damaged(frame_record(b"some data"), how))
    *_, last = read_records(path)
    assert isinstance(last, DataError)
    assert "x.tfrecord: record 0" in str(last)


def test_records_come_back_as_they_were_written(tmp_path, frame_record):
    generator = random.Random(0)
    records = [generator.randbytes(length) for length in (0, 1, 8, 1023, 1024, 1025, 3072, 5000)]
    path = tmp_path / "x.tfrecord"
    path.write_bytes(gzip.compress(b"".join(map(frame_record, records))))
    assert list(read_records(path)) == records
    with pytest.raises(DataError, match="missing"):
        list(read_records(tmp_path / "missing"))


def test_checksum_of_the_standard_and_of_another_implementation():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    reference = pytest.importorskip("tensorboardX.crc32c").crc32c
    data = random.Random(1).randbytes(10_000)
    assert crc32c(data) == reference(data)


def test_features_of_an_example(make_example):
    features = {"b": ["x", b"\xff"], "f": [0.5, -2.0], "i": [3, -1, 2**40], "none": []}
    assert parse_example(make_example(features), "here") == {**features, "b": [b"x", b"\xff"]}
    with pytest.raises(DataError, match="here: not a Example message"):
        parse_example(b"\xff\xff\xff", "here")


def test_numbers_may_be_packed_or_not(proto_field):
    unpacked = b"".join(proto_field(1, value) for value in (1, 300))
    entry = proto_field(1, b"i") + proto_field(2, proto_field(3, unpacked))
    assert parse_example(proto_field(1, proto_field(1, entry)), "here") == {"i": [1, 300]}
