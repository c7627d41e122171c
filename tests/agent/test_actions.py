from __future__ import annotations

import math

import pytest

from gui_owl_jax.agent.actions import (
    ACTION_TABLE,
    TOOL_KIND,
    Action,
    ToolCall,
    action_from_call,
    call_from_action,
    from_pixels,
    to_pixels,
)
from gui_owl_jax.agent.devices import DeviceFamily, tool_name
from gui_owl_jax.agent.errors import DataError, ParseError, ParseReason

MOBILE, DESKTOP, WEB = DeviceFamily


def test_call_and_action_are_inverse(actions):
    for family, action in actions:
        call = call_from_action(family, action)
        assert call.name == tool_name(family)
        assert action_from_call(family, call) == action


def test_call_prints_action_first_then_table_order_and_whole_numbers_as_int():
    action = Action("swipe", coordinate2=(10.0, 20.5), coordinate=(1.0, 2.0))
    call = call_from_action(MOBILE, action)
    assert list(call.arguments.items()) == [("action", "swipe"), ("coordinate", [1, 2]), ("coordinate2", [10, 20.5])]
    assert [type(value) for value in call.arguments["coordinate"]] == [int, int]
    assert list(call_from_action(WEB, Action("type", text="a", label=3)).arguments) == ["action", "label", "text"]
    assert call_from_action(WEB, Action("wait")).arguments == {"action": "wait"}


@pytest.mark.parametrize("family", DeviceFamily)
def test_every_required_argument_is_required_and_every_other_refused(family, rng):
    examples = {
        "coordinate": [1, 2], "coordinate2": [3, 4], "text": "a", "button": "Back", "keys": ["a"], "time": 1,
        "status": "success", "pixels": 1, "label": 1, "direction": "up", "option": "o",
    }  # fmt: skip
    for kind, spec in ACTION_TABLE[family].items():
        full = {"action": kind, **{name: examples[name] for name in spec.required}}
        assert action_from_call(family, ToolCall(tool_name(family), full)).kind == kind
        for name in spec.required:
            less = {key: value for key, value in full.items() if key != name}
            assert _reason(family, less) == ParseReason.MISSING_ARGUMENT
            assert _reason(family, {**full, name: None}) == ParseReason.MISSING_ARGUMENT
        for name in set(examples) - set(spec.arguments):
            assert _reason(family, {**full, name: examples[name]}) == ParseReason.UNKNOWN_ARGUMENT
            # null is absence: models fill in the whole schema
            assert action_from_call(family, ToolCall(tool_name(family), {**full, name: None})).kind == kind
        assert _reason(family, {**full, "speed": None}) == ParseReason.UNKNOWN_ARGUMENT


@pytest.mark.parametrize(
    ("family", "arguments", "reason"),
    [
        (MOBILE, {}, ParseReason.MISSING_ARGUMENT),
        (MOBILE, {"action": ["click"]}, ParseReason.UNKNOWN_ACTION),
        (MOBILE, {"action": "left_click", "coordinate": [1, 2]}, ParseReason.UNKNOWN_ACTION),
        (MOBILE, {"action": "Click", "coordinate": [1, 2]}, ParseReason.UNKNOWN_ACTION),
        (MOBILE, {"action": "system_button", "button": "back"}, ParseReason.BAD_ARGUMENT),
        (MOBILE, {"action": "terminate", "status": True}, ParseReason.BAD_ARGUMENT),
        (MOBILE, {"action": "wait", "time": -1}, ParseReason.OUT_OF_RANGE),
        (MOBILE, {"action": "wait", "time": math.inf}, ParseReason.OUT_OF_RANGE),
        (MOBILE, {"action": "wait", "time": "1e3"}, ParseReason.BAD_ARGUMENT),
        (MOBILE, {"action": "type", "text": 42}, ParseReason.BAD_ARGUMENT),
        (DESKTOP, {"action": "key", "keys": "ctrl+c"}, ParseReason.BAD_ARGUMENT),
        (DESKTOP, {"action": "key", "keys": []}, ParseReason.BAD_ARGUMENT),
        (DESKTOP, {"action": "key", "keys": ["ctrl", ""]}, ParseReason.BAD_ARGUMENT),
        (DESKTOP, {"action": "scroll", "pixels": 1.5}, ParseReason.BAD_ARGUMENT),
        (DESKTOP, {"action": "scroll", "pixels": 10**400}, ParseReason.OUT_OF_RANGE),
        (WEB, {"action": "click", "label": "WINDOW"}, ParseReason.BAD_ARGUMENT),
        (WEB, {"action": "click", "label": "[3]"}, ParseReason.BAD_ARGUMENT),
        (WEB, {"action": "click", "label": -1}, ParseReason.OUT_OF_RANGE),
        (WEB, {"action": "click", "label": False}, ParseReason.BAD_ARGUMENT),
        (WEB, {"action": "scroll", "label": "WINDOW", "direction": "left"}, ParseReason.BAD_ARGUMENT),
    ],
)
def test_refuses(family, arguments, reason):
    assert _reason(family, arguments) == reason


@pytest.mark.parametrize(
    ("family", "arguments", "action"),
    [
        (MOBILE, {"action": "wait", "time": "2"}, Action("wait", time=2.0)),
        (DESKTOP, {"action": "scroll", "pixels": "-5"}, Action("scroll", pixels=-5)),
        (DESKTOP, {"action": "scroll", "pixels": 5.0}, Action("scroll", pixels=5)),
        (WEB, {"action": "click", "label": "12"}, Action("click", label=12)),
        (
            WEB,
            {"action": "scroll", "label": "WINDOW", "direction": "up"},
            Action("scroll", label="WINDOW", direction="up"),
        ),
        (WEB, {"action": "type", "label": 0, "text": ""}, Action("type", label=0, text="")),
    ],
)
def test_converts_what_has_one_reading(family, arguments, action):
    assert action_from_call(family, ToolCall(tool_name(family), arguments)) == action


@pytest.mark.parametrize(
    ("family", "action", "reason"),
    [
        (MOBILE, Action("click"), ParseReason.MISSING_ARGUMENT),
        (MOBILE, Action("click", coordinate=(1, 2), time=1.0), ParseReason.UNKNOWN_ARGUMENT),
        (MOBILE, Action("click", coordinate=(1, 1000.5)), ParseReason.OUT_OF_RANGE),
        (MOBILE, Action("click", coordinate=(math.nan, 1)), ParseReason.OUT_OF_RANGE),
        (WEB, Action("click", coordinate=(1, 2)), ParseReason.MISSING_ARGUMENT),
        (WEB, Action(TOOL_KIND, text="search"), ParseReason.UNKNOWN_ACTION),
    ],
)
def test_an_action_that_does_not_fit_is_never_written(family, action, reason):
    with pytest.raises(ParseError) as caught:
        call_from_action(family, action)
    assert caught.value.reason == reason


def test_wrong_tool():
    with pytest.raises(ParseError, match="mobile has 'mobile_use'") as caught:
        action_from_call(MOBILE, ToolCall("computer_use", {"action": "wait", "time": 1}))
    assert caught.value.reason == ParseReason.WRONG_TOOL


def test_pixels_round_trip_exactly_up_to_size_1000():
    for size in range(1, 1001):
        for pixel in range(size):
            grid = from_pixels(pixel, 0, size, 1)[0]
            assert 0 <= grid <= 1000 and to_pixels((grid, 0), size, 1)[0] == pixel, (size, pixel)


def test_pixels_round_trip_within_half_a_grid_cell_beyond(rng):
    for size in [*range(1001, 4001, 37), 1080, 1920, 2400, 3120, 3840, 4000]:
        bound = math.ceil(size / 2000)
        pixels = [0, size - 1, *(rng.randrange(size) for _ in range(40))]
        for pixel in pixels:
            back = to_pixels(from_pixels(0, pixel, 1, size), 1, size)[1]
            assert 0 <= back < size and abs(back - pixel) <= bound, (size, pixel, back)


def test_grid_round_trips_through_screens_finer_than_the_grid():
    for size in [1000, 1080, 1999, 2400, 4000]:
        for value in range(0, 1000, 7):
            assert from_pixels(*to_pixels((value, value), size, size), size, size) == (value, value)


def test_every_relative_value_is_in_bounds(rng):
    for size in range(1, 4001, 13):
        for value in [0, 1, 999, 1000, 999.9999, rng.uniform(0, 1000)]:
            x, y = to_pixels((value, 1000 - value), size, 4001 - size)
            assert 0 <= x < size and 0 <= y < 4001 - size
            assert type(x) is int and type(y) is int


def test_axes_are_not_swapped_and_the_far_edge_is_the_last_pixel():
    assert to_pixels((500, 250), 200, 100) == (100, 25)
    assert to_pixels((1000, 1000), 1080, 2400) == (1079, 2399)
    assert to_pixels((999, 0), 1080, 2400, scale=999) == (1079, 0)
    assert from_pixels(100, 25, 200, 100) == (502, 255)  # the middle of pixel 100 of 200 lies at 502.5


def test_a_float_pixel_means_the_pixel_it_lies_in():
    assert from_pixels(7.9, 3.0, 96, 160) == from_pixels(7, 3, 96, 160)


@pytest.mark.parametrize("coordinate", [(-1, 0), (0, 1000.01), (math.nan, 0), (0, math.inf)])
def test_to_pixels_refuses_what_lies_outside(coordinate):
    with pytest.raises(ParseError) as caught:
        to_pixels(coordinate, 10, 10)
    assert caught.value.reason == ParseReason.OUT_OF_RANGE


@pytest.mark.parametrize("pixel", [(-1, 0), (10, 0), (0, 20), (math.nan, 0)])
def test_from_pixels_refuses_what_lies_outside(pixel):
    with pytest.raises(DataError, match="outside the screen of 10x20"):
        from_pixels(*pixel, 10, 20)


def test_a_screen_without_pixels_is_refused():
    with pytest.raises(DataError, match="0x5"):
        to_pixels((0, 0), 0, 5)


def _reason(family, arguments):
    with pytest.raises(ParseError) as caught:
        action_from_call(family, ToolCall(tool_name(family), arguments))
    return caught.value.reason
