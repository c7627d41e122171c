from __future__ import annotations

import json

import pytest

from gui_owl_jax.agent.actions import ARGUMENT_NAMES
from gui_owl_jax.agent.devices import ACTION_TABLE, DEVICE_FAMILIES, DeviceFamily, tool_name, tool_schema

# The published tables, written out once more by hand: action(required | optional).
PUBLISHED = {
    DeviceFamily.MOBILE: (
        "key(text) click(coordinate) long_press(coordinate,time) swipe(coordinate,coordinate2) type(text) "
        "system_button(button) open(text) wait(time) answer(text) interact(text) terminate(status)"
    ),
    DeviceFamily.DESKTOP: (
        "key(keys) type(text) mouse_move(coordinate) left_click(coordinate) left_click_drag(coordinate) "
        "right_click(coordinate) middle_click(coordinate) double_click(coordinate) triple_click(coordinate) "
        "scroll(pixels) hscroll(pixels) wait(time) terminate(status) answer(text) interact(text)"
    ),
    DeviceFamily.WEB: (
        "click(label) type(label,text) scroll(label,direction) select(label,option) wait(|time) go_back() wikipedia() "
        "answer(text)"
    ),
}


def test_families_have_their_order_and_names():
    assert DEVICE_FAMILIES == tuple(DeviceFamily) == ("mobile", "desktop", "web")
    assert [tool_name(family) for family in DEVICE_FAMILIES] == ["mobile_use", "computer_use", "browser_use"]


@pytest.mark.parametrize("family", DEVICE_FAMILIES)
def test_table_is_the_published_one(family):
    def show(kind, spec):
        optional = f"|{','.join(spec.optional)}" if spec.optional else ""
        return f"{kind}({','.join(spec.required)}{optional})"

    assert " ".join(show(kind, spec) for kind, spec in ACTION_TABLE[family].items()) == PUBLISHED[family]


@pytest.mark.parametrize("family", DEVICE_FAMILIES)
def test_schema_names_every_action_and_argument(family):
    schema = json.loads(json.dumps(tool_schema(family)))  # regression: a published schema held an unbalanced quote
    function, table = schema["function"], ACTION_TABLE[family]
    assert (schema["type"], function["name"]) == ("function", tool_name(family))
    properties = function["parameters"]["properties"]
    assert properties["action"]["enum"] == list(table)
    assert set(properties) - {"action"} == {name for spec in table.values() for name in spec.arguments}
    for kind, spec in table.items():
        assert spec.description and f"* `{kind}`: {spec.description}" in properties["action"]["description"]
        for name in properties:
            if name != "action":
                assert (f"`action={kind}`" in properties[name]["description"]) == (name in spec.arguments), (kind, name)
    assert ("1000x1000" in function["description"]) == (family != DeviceFamily.WEB)


def test_every_argument_is_a_field_of_action():
    names = {name for table in ACTION_TABLE.values() for spec in table.values() for name in spec.arguments}
    assert names == set(ARGUMENT_NAMES)


def test_schema_is_a_new_dict_each_time():
    tool_schema(DeviceFamily.WEB)["function"]["parameters"]["properties"]["label"]["type"].append("object")
    label = tool_schema(DeviceFamily.WEB)["function"]["parameters"]["properties"]["label"]
    assert label["type"] == ["integer", "string"]
