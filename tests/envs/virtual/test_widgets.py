from envs.virtual.widgets import (
    CELL,
    Kind,
    Widget,
    elements,
    find,
    hit,
    marks,
    page,
    place,
    reading_order,
    screen_size,
    scrollbar,
)
from gui_owl_jax.agent.devices import DeviceFamily

WEB = DeviceFamily.WEB
TREE = page(
    WEB,
    place(Kind.FIELD, "Key", 2, 1, 2, key="field:Key", value="47"),
    place(Kind.LINK, "List", 0, 1, 2, key="list:"),
    place(Kind.LABEL, "Form", 0, 0, 4),
)


def test_screen_sizes():
    assert [screen_size(family) for family in DeviceFamily] == [(96, 160), (160, 96), (128, 128)]


def test_reading_order_and_marks_skip_what_cannot_be_clicked():
    assert [widget.text for widget in reading_order(TREE)] == ["Form", "List", "Key"]
    assert marks(TREE) == {"list:": 1, "field:Key": 2}
    assert reading_order(page(WEB)) == []


def test_hit_includes_left_and_upper_edge_only():
    assert hit(TREE, 0, 32).key == "list:"
    assert hit(TREE, 63, 63).key == "list:"
    assert hit(TREE, 64, 32).key == "field:Key"
    assert hit(TREE, 0, 31) is None  # a label
    assert hit(TREE, 0, 64) is None  # the page


def test_hit_takes_the_topmost():
    above = Widget(Kind.BUTTON, "Top", (0, 0, CELL, CELL), key="top:")
    tree = page(WEB, place(Kind.LINK, "Low", 0, 0, key="low:"), above)
    assert hit(tree, 5, 5) is above


def test_elements_carry_text_value_label_and_scaled_box():
    found = elements(TREE, marks(TREE), scale=2)
    assert [element.text for element in found] == ["Form", "List", "Key 47"]
    assert [element.label for element in found] == [None, 1, 2]
    assert found[2].box == (128, 64, 128, 64) and found[2].kind == "field" and found[2].clickable
    assert not found[0].clickable


def test_find():
    assert find(TREE, "field:Key").value == "47"
    assert find(TREE, "field:Pen") is None


def test_scrollbar_shows_the_part_in_sight():
    assert scrollbar(DeviceFamily.MOBILE, 1, 0, 4) == ()
    # 8 rows, 4 in sight: half of the track of 128 px, at its lower end when scrolled by 4.
    (thumb,) = scrollbar(DeviceFamily.MOBILE, 1, 4, 8)
    assert thumb.box == (94, 32 + 64, 2, 64) and not thumb.key
