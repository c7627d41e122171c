import pytest

from envs.virtual.app import Event, EventKind
from envs.virtual.gestures import Screen, event_of
from envs.virtual.widgets import Kind, marks, page, place
from gui_owl_jax.agent.actions import Action, from_pixels
from gui_owl_jax.agent.devices import DeviceFamily

CURSOR = (10, 10)


def screen(family, scale=1):
    tree = page(family, place(Kind.FILE, "Pen", 0, 0, key="item:Pen"), place(Kind.FOLDER, "Map", 1, 2, key="item:Map"))
    return Screen(family, tree, marks(tree) if family == DeviceFamily.WEB else {}, CURSOR, scale)


def at(family, x, y, scale=1):
    _, _, width, height = screen(family).tree.box
    return from_pixels(x * scale, y * scale, width * scale, height * scale)


MOBILE, DESKTOP, WEB = DeviceFamily.MOBILE, DeviceFamily.DESKTOP, DeviceFamily.WEB


@pytest.mark.parametrize("scale", [1, 2, 3])
@pytest.mark.parametrize(
    "family, kind, event",
    [
        (MOBILE, "click", EventKind.TAP),
        (MOBILE, "long_press", EventKind.HOLD),
        (DESKTOP, "left_click", EventKind.TAP),
        (DESKTOP, "double_click", EventKind.DOUBLE),
        (DESKTOP, "right_click", EventKind.CONTEXT),
    ],
)
def test_clicks_hit_the_widget_below(family, kind, event, scale):
    hit, cursor = event_of(Action(kind, coordinate=at(family, 48, 80, scale)), screen(family, scale))
    assert hit == Event(event, "item:Map")
    assert cursor == ((48, 80) if family == DESKTOP else CURSOR)
    missed, _ = event_of(Action(kind, coordinate=at(family, 80, 80, scale)), screen(family, scale))
    assert missed == Event(event, "")


def test_every_pixel_of_a_widget_belongs_to_it():
    for x in (0, 31):
        for y in (0, 31):
            event, _ = event_of(Action("click", coordinate=at(MOBILE, x, y)), screen(MOBILE))
            assert event.target == "item:Pen"
    assert event_of(Action("click", coordinate=(1000, 1000)), screen(MOBILE))[0].target == ""


def test_swipe_scrolls_against_the_finger():
    up = Action("swipe", coordinate=at(MOBILE, 48, 144), coordinate2=at(MOBILE, 48, 16))
    down = Action("swipe", coordinate=at(MOBILE, 48, 16), coordinate2=at(MOBILE, 48, 80))
    aside = Action("swipe", coordinate=at(MOBILE, 16, 16), coordinate2=at(MOBILE, 80, 20))
    assert event_of(up, screen(MOBILE))[0] == Event(EventKind.SCROLL, rows=4)
    assert event_of(down, screen(MOBILE))[0] == Event(EventKind.SCROLL, rows=-2)
    assert event_of(aside, screen(MOBILE))[0] == Event(EventKind.SCROLL, rows=0)


def test_a_drag_starts_at_the_cursor():
    drag = Action("left_click_drag", coordinate=at(DESKTOP, 48, 80))
    event, cursor = event_of(drag, screen(DESKTOP))
    assert event == Event(EventKind.DRAG, "item:Pen", onto="item:Map")
    assert cursor == (48, 80)
    again, _ = event_of(drag, screen(DESKTOP)._replace(cursor=cursor))
    assert again.target == "item:Map"


def test_moving_the_mouse_is_no_event():
    assert event_of(Action("mouse_move", coordinate=at(DESKTOP, 48, 80)), screen(DESKTOP)) == (None, (48, 80))


@pytest.mark.parametrize("scale", [1, 2])
def test_scroll_counts_pixels_of_the_screenshot_positive_up(scale):
    rows = [
        event_of(Action("scroll", pixels=pixels), screen(DESKTOP, scale))[0].rows for pixels in (-96, 32 * scale, 3)
    ]
    assert rows == [3 // scale if scale == 1 else 2, -1, 0]


def test_keys_are_joined_in_lower_case():
    assert event_of(Action("key", keys=("Ctrl", "A")), screen(DESKTOP))[0] == Event(EventKind.KEY, text="ctrl+a")


def test_buttons():
    assert event_of(Action("system_button", button="Back"), screen(MOBILE))[0] == Event(EventKind.BACK)
    assert event_of(Action("system_button", button="Home"), screen(MOBILE))[0] == Event(EventKind.HOME)
    assert event_of(Action("system_button", button="Menu"), screen(MOBILE))[0] is None


@pytest.mark.parametrize(
    "action, event",
    [
        (Action("click", label=2), Event(EventKind.TAP, "item:Map")),
        (Action("click", label=9), Event(EventKind.TAP, "")),
        (Action("type", label=1, text="47"), Event(EventKind.TYPE, "item:Pen", text="47")),
        (Action("select", label=1, option="Red"), Event(EventKind.CHOOSE, "item:Pen", text="Red")),
        (Action("scroll", label="WINDOW", direction="down"), Event(EventKind.SCROLL, rows=4)),
        (Action("scroll", label="WINDOW", direction="up"), Event(EventKind.SCROLL, rows=-4)),
        (Action("scroll", label=1, direction="down"), None),
        (Action("go_back"), Event(EventKind.BACK)),
        (Action("wait"), None),
    ],
)
def test_web_actions_name_marks(action, event):
    assert event_of(action, screen(WEB)) == (event, CURSOR)
