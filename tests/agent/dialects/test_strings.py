"""Outputs in every dialect: the right action, or the reason why there is none."""

from __future__ import annotations

import collections

import pytest

from gui_owl_jax.agent import dialects
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ParseError, ParseReason

MOBILE, DESKTOP, WEB = DeviceFamily
R = ParseReason
SHOWN = (1280, 640)  # of the dialects that write pixels of it
REFUSED = Action("terminate", status="failure")
DONE = Action("terminate", status="success")


def click(x, y):
    return Action("click", coordinate=(x, y))


def left_click(x, y):
    return Action("left_click", coordinate=(x, y))


def mobile(arguments):
    return f'<tool_call>\n{{"name": "mobile_use", "arguments": {arguments}}}\n</tool_call>'


def desktop(arguments):
    return f'<tool_call>\n{{"name": "computer_use", "arguments": {arguments}}}\n</tool_call>'


def seed(function, parameters=""):
    return f"<seed:tool_call><function={function}>{parameters}</function></seed:tool_call>"


def answer(value):
    return f"<think>Hm.</think>\n<answer>{value}</answer>"


def grounded(value):
    return f"<grounding_think>\nThought: the gear.\n</grounding_think>\n<answer>\n{value}\n</answer>"


def venus(call):
    return f"<think>Hm.</think>\n<action>{call}</action>\n<conclusion>Done.</conclusion>"


# dialect -> (output, family, action or reason)
STRINGS = {
    "gui_owl_1_5": [
        ("Action: Tap.\n" + mobile('{"action": "click", "coordinate": [512, 384]}'), MOBILE, click(512, 384)),
        (
            "Action: Drag.\n" + desktop('{"action": "left_click_drag", "coordinate": [7, 8]}'),
            DESKTOP,
            Action("left_click_drag", coordinate=(7, 8)),
        ),
        (desktop('{"action": "hscroll", "pixels": -40}'), DESKTOP, Action("hscroll", pixels=-40)),
        (
            mobile('{"action": "type", "label": 3, "text": "a\\/b"}').replace("mobile_use", "browser_use"),
            WEB,
            Action("type", label=3, text="a/b"),
        ),
        (desktop('{"action": "terminate", "status": "failure", "text": null}'), DESKTOP, REFUSED),
        (mobile('{"action": "type", "text": "one\ntwo"}'), MOBILE, Action("type", text="one\ntwo")),
        (
            "Action: Tap.\n" + mobile('{"action": "click", "coordinate": [512, 384]}') + " Done!",
            MOBILE,
            R.TRAILING_TEXT,
        ),
        (mobile('{"action": "click", "coordinate": [512, 1001]}'), MOBILE, R.OUT_OF_RANGE),
        ("<tool_call>{'name': 'mobile_use', 'arguments': {}}</tool_call>", MOBILE, R.BAD_JSON),
        (mobile('{"action": "click", "coordinate": "512, 384"}'), MOBILE, R.BAD_ARGUMENT),
        ("Action: Tap (512, 384).", MOBILE, R.NO_TOOL_CALL),
        (desktop('{"action": "left_click", "coordinate": [1, 2]}'), MOBILE, R.WRONG_TOOL),
        (mobile('{"coordinate": [1, 2]}'), MOBILE, R.MISSING_ARGUMENT),
        (mobile('{"action": ["click"], "coordinate": [1, 2]}'), MOBILE, R.UNKNOWN_ACTION),
    ],
    "gui_owl_v3": [
        (
            "<thinking>Hm.</thinking>\n"
            + mobile('{"action": "click", "coordinate": [640, 160]}')
            + "\n<conclusion>Ok.</conclusion>",
            MOBILE,
            click(500, 250),
        ),
        (desktop('{"action": "click", "coordinate": [1280, 640]}'), DESKTOP, left_click(1000, 1000)),
        (desktop('{"action": "type", "text": "tea", "clear": 0, "enter": 1}'), DESKTOP, Action("type", text="tea\n")),
        (desktop('{"action": "scroll", "pixels": -5}'), DESKTOP, Action("scroll", pixels=-500)),
        (
            mobile('{"action": "type", "text": "<conclusion>x</conclusion>"}') + "<conclusion>Typed.</conclusion>",
            MOBILE,
            Action("type", text="<conclusion>x</conclusion>"),
        ),
        (
            "<conclusion>Wait.</conclusion>\n" + desktop('{"action": "wait", "time": 1}'),
            DESKTOP,
            Action("wait", time=1),
        ),
        (desktop('{"action": "type", "text": "tea", "clear": 1, "enter": 0}'), DESKTOP, R.UNKNOWN_ACTION),
        (
            desktop('{"action": "drag", "coordinate": [1, 2], "coordinate2": [3, 4]}'),
            DESKTOP,
            R.UNKNOWN_ACTION,
        ),
        (desktop('{"action": "left_click", "coordinate": [1, 2]}'), DESKTOP, R.UNKNOWN_ACTION),
        (desktop('{"action": "click", "coordinate": [1281, 1]}'), DESKTOP, R.OUT_OF_RANGE),
        (desktop('{"action": "wait", "time": 1}') + "\n<conclusion>Waited", DESKTOP, R.TRAILING_TEXT),
        ("<thinking>Hm.\n" + desktop('{"action": "wait", "time": 1}'), DESKTOP, R.UNCLOSED_TAG),
        (desktop('{"action": "scroll", "pixels": "up"}'), DESKTOP, R.BAD_ARGUMENT),
    ],
    "qwen3_vl": [
        (
            "Thought: Hm.\nAction: Tap it.\n" + mobile('{"action": "click", "coordinate": [999, 333]}'),
            MOBILE,
            click(1000, 333 * 1000 / 999),
        ),
        (desktop('{"action": "left_click", "coordinate": [0, 999]}'), DESKTOP, left_click(0, 1000)),
        (desktop('{"action": "answer", "text": "4"}'), DESKTOP, Action("answer", text="4")),
        (desktop('{"action": "key", "keys": ["ctrl", "c"]}'), DESKTOP, Action("key", keys=("ctrl", "c"))),
        (desktop('{"action": "left_click", "coordinate": [1000, 5]}'), DESKTOP, R.OUT_OF_RANGE),
        (mobile('{"action": "interact", "text": "Log in."}'), MOBILE, R.UNKNOWN_ACTION),
        (mobile('{"action": "click", "coordinate": [1, 2, 3, 4]}'), MOBILE, R.BAD_ARGUMENT),
        (mobile('{"action": "click"}'), MOBILE, R.MISSING_ARGUMENT),
        (mobile('{"action": "wait", "time": 1}') * 2, MOBILE, R.SEVERAL_TOOL_CALLS),
    ],
    "qwen2_5_vl": [
        (mobile('{"action": "click", "coordinate": [320, 320]}'), MOBILE, click(250, 500)),
        (
            mobile('{"action": "swipe", "coordinate": [640, 512], "coordinate2": [640, 128]}'),
            MOBILE,
            Action("swipe", coordinate=(500, 800), coordinate2=(500, 200)),
        ),
        (
            desktop('{"action": "double_click", "coordinate": ["64", "1.6"]}'),
            DESKTOP,
            Action("double_click", (50, 2.5)),
        ),
        (mobile('{"action": "click", "coordinate": [320, 641]}'), MOBILE, R.OUT_OF_RANGE),
        (mobile('{"action": "click", "coordinate": [-1, 3]}'), MOBILE, R.OUT_OF_RANGE),
        (mobile('{"action": "click", "coordinate": [1e999, 3]}'), MOBILE, R.OUT_OF_RANGE),
        (mobile('{"action": "click", "coordinate": [true, 3]}'), MOBILE, R.BAD_ARGUMENT),
        (mobile('{"action": "click", "coordinate": [3, 3], "speed": 2}'), MOBILE, R.UNKNOWN_ARGUMENT),
    ],
    "ui_tars_1": [
        ("Thought: Hm.\nAction: click(start_box='(500,250)')", DESKTOP, left_click(500, 250)),
        ("Thought: Hm.\nAction: click(start_box='<|box_start|>(500,250)<|box_end|>')", MOBILE, click(500, 250)),
        (
            "Action: drag(start_box='(1,2)', end_box='(3,4)')",
            MOBILE,
            Action("swipe", coordinate=(1, 2), coordinate2=(3, 4)),
        ),
        ("Thought: No way.\nAction: call_user()", DESKTOP, REFUSED),
        ("Action: finished()<|im_end|>", DESKTOP, DONE),
        ("Action: drag(start_box='(1,2)', end_box='(3,4)')", DESKTOP, R.UNKNOWN_ACTION),
        ("Action: click(start_box='(1,2,3,4)')", DESKTOP, R.BAD_ARGUMENT),
        ("Action: click(start_box='(500,1250)')", DESKTOP, R.OUT_OF_RANGE),
        ("Thought: Hm.", DESKTOP, R.NO_TOOL_CALL),
        ("click(start_box='(500,250)')", DESKTOP, R.NO_TOOL_CALL),
    ],
    "ui_tars_1_5": [
        ("Thought: Hm.\nAction: click(point='<point>640 160</point>')", DESKTOP, left_click(500, 250)),
        (
            "Thought: Hm. Action: left_double(point='<point>640 160</point>')",
            DESKTOP,
            Action("double_click", (500, 250)),
        ),
        ("Action: hotkey(key='ctrl c')", DESKTOP, Action("key", keys=("ctrl", "c"))),
        ("Action: scroll(point='<point>640 160</point>', direction='down')", DESKTOP, Action("scroll", pixels=-500)),
        ("Action: scroll(point='<point>640 160</point>', direction='right')", DESKTOP, Action("hscroll", pixels=-500)),
        (
            "Action: scroll(point='<point>640 480</point>', direction='down')",
            MOBILE,
            Action("swipe", coordinate=(500, 750), coordinate2=(500, 250)),
        ),
        ("Action: type(content='f(x)\\n\\ng(x)')", DESKTOP, Action("type", text="f(x)\n\ng(x)")),
        ("Action: type(content='f(x)\n\ng(x)')", DESKTOP, Action("type", text="f(x)\n\ng(x)")),
        ("Action: type(content='point=3, start_point=4')", DESKTOP, Action("type", text="point=3, start_point=4")),
        ("Action: type(content='')", DESKTOP, Action("type", text="")),
        ("Action: type(content='main\\n')", DESKTOP, Action("type", text="main\n")),
        ("Action: type(content='it\\'s \\\"so\\\"')", DESKTOP, Action("type", text='it\'s "so"')),
        ("Action: finished(content='It is 4.')", MOBILE, Action("answer", text="It is 4.")),
        ("Action: open_app(app_name='Maps')", MOBILE, Action("open", text="Maps")),
        ("Action: press_home()", MOBILE, Action("system_button", button="Home")),
        (
            'Thought: It says "Action: type(content=1)" there.\nAction: wait()',
            DESKTOP,
            Action("wait", time=5),
        ),
        ("Reflection: No.\nAction_Summary: Wait.\nAction: wait()", DESKTOP, Action("wait", time=5)),
        ("Action: wait()\n\nAction: wait()", DESKTOP, R.SEVERAL_TOOL_CALLS),
        ("Action: wait()\n\nclick(point='<point>1 2</point>')", DESKTOP, R.SEVERAL_TOOL_CALLS),
        ("Action: wait() and see", DESKTOP, R.TRAILING_TEXT),
        ("Action: type(content='it's so')", DESKTOP, R.BAD_JSON),
        ("Action: type(content='tea", DESKTOP, R.BAD_JSON),
        ("Action: click(point='<point>640 160</point>'", DESKTOP, R.BAD_JSON),
        ("Action: click(<point>640 160</point>)", DESKTOP, R.BAD_JSON),
        ("Action: click(point='__import__(\"os\")')", DESKTOP, R.BAD_ARGUMENT),
        ("Action: click(point=__import__('os'))", DESKTOP, R.BAD_JSON),
        ("Action: click(point='<point>640 660</point>')", DESKTOP, R.OUT_OF_RANGE),
        ("Action: hotkey(key='ctrl +')", DESKTOP, Action("key", keys=("ctrl", "+"))),
        ("Action: hotkey(key='ctrl+c')", DESKTOP, R.BAD_ARGUMENT),
        ("Action: scroll(direction='sideways')", DESKTOP, R.BAD_ARGUMENT),
        ("Action: scroll(point='<point>1 2</point>')", DESKTOP, R.MISSING_ARGUMENT),
        ("Action: press_home()", DESKTOP, R.UNKNOWN_ACTION),
        ("Action: click(point='<point>1 2</point>', start_box='(1,2)')", DESKTOP, R.BAD_ARGUMENT),
    ],
    "ui_tars_2": [
        (
            "<gui_think>Hm.</gui_think>\n" + seed("click", "<parameter=point><point>500 250</point></parameter>"),
            DESKTOP,
            left_click(500, 250),
        ),
        (seed("move_to", "<parameter=point><point>1 2</point></parameter>"), DESKTOP, Action("mouse_move", (1, 2))),
        (seed("wait", "<parameter=time> 2 </parameter>"), DESKTOP, Action("wait", time=2)),
        (seed("type", "<parameter=content>a\n</parameter>"), DESKTOP, Action("type", text="a\n")),
        (seed("type", "<parameter=content></function> x</parameter>"), DESKTOP, Action("type", text="</function> x")),
        (seed("call_user"), DESKTOP, REFUSED),
        (seed("scroll", "<parameter=direction>up</parameter>"), DESKTOP, Action("scroll", pixels=500)),
        (seed("wait", "<parameter=time>2</parameter><parameter=time>3</parameter>"), DESKTOP, R.BAD_JSON),
        (seed("press", "<parameter=key>a</parameter>"), DESKTOP, R.UNKNOWN_ACTION),
        (seed("take_screenshot"), DESKTOP, R.UNKNOWN_ACTION),
        (seed("wait") * 2, DESKTOP, R.SEVERAL_TOOL_CALLS),
        (
            "<seed:tool_call><function=wait></function><function=wait></function></seed:tool_call>",
            DESKTOP,
            R.SEVERAL_TOOL_CALLS,
        ),
        ("<seed:tool_call><function=wait></function>", DESKTOP, R.UNCLOSED_TAG),
        ("<function=wait></function>", DESKTOP, R.NO_TOOL_CALL),
        ("<gui_think>Hm." + seed("wait"), DESKTOP, R.UNCLOSED_TAG),
        (seed("click", "<parameter=point>500 250</parameter>"), DESKTOP, R.BAD_ARGUMENT),
    ],
    "ui_r1": [
        (answer("[{'action': 'click', 'coordinate': [640, 160]}]"), MOBILE, click(500, 250)),
        (answer('[{"action": "click", "coordinate": [640, 160]}]'), DESKTOP, left_click(500, 250)),
        (
            answer("[{'action': 'scroll', 'coordinate': [0, 0], 'direction': 'down'}]"),
            MOBILE,
            Action("swipe", coordinate=(500, 750), coordinate2=(500, 250)),
        ),
        (answer("[{'action': 'scroll', 'coordinate': [3, 4]}]"), MOBILE, Action("swipe")),
        (answer("[{'action': 'open_app'}]"), MOBILE, Action("open")),
        (answer("[{'action': 'input_text', 'text': 'it\\'s'}]"), MOBILE, Action("type", text="it's")),
        (answer("[{'action': 'navigate_back'}]"), MOBILE, Action("system_button", button="Back")),
        (answer("[{'action': 'impossible'}]"), MOBILE, REFUSED),
        (answer("[{'action': 'click, 'coordinate': [640, 160]}]"), MOBILE, R.BAD_JSON),
        (answer("[{'action': enum['click'], 'coordinate': [640, 160]}]"), MOBILE, R.BAD_JSON),
        (answer("[{'action': 'click', 'coordinate': [1, 2, 3, 4]}]"), MOBILE, R.BAD_ARGUMENT),
        (answer("[{'action': 'click', 'coordinate': [640, 641]}]"), MOBILE, R.OUT_OF_RANGE),
        (answer("[{'action': 'click', 'coordinate': [1, 1]}, {'action': 'click'}]"), MOBILE, R.SEVERAL_TOOL_CALLS),
        (answer("[]"), MOBILE, R.NO_TOOL_CALL),
        (answer("(640, 160)"), MOBILE, R.BAD_JSON),
        ("<think>Hm.</think>[{'action': 'click', 'coordinate': [640, 160]}]", MOBILE, R.NO_TOOL_CALL),
        ("<think>Hm.</think><answer>[{'action': 'click', 'coordinate': [640, 160]}]", MOBILE, R.UNCLOSED_TAG),
        (answer("[{'action': 'open_app', 'app_name': 'Maps'}]"), DESKTOP, R.UNKNOWN_ACTION),
        ("<think>Hm.</think><answer>[{'action': 'cl", MOBILE, R.UNCLOSED_TAG),
        (answer("[{'action': 'click'}]"), MOBILE, R.MISSING_ARGUMENT),
    ],
    "gui_r1": [
        (answer("[{'action': 'click', 'point': [640, 160], 'input_text': 'no input text'}]"), MOBILE, click(500, 250)),
        (
            answer("[{'action': 'type', 'point': [100, 100], 'input_text': 'tea'}]"),
            DESKTOP,
            Action("type", text="tea"),
        ),
        (
            answer("[{'action': 'scroll', 'point': [-100, -100], 'input_text': 'up'}]"),
            MOBILE,
            Action("swipe", coordinate=(500, 250), coordinate2=(500, 750)),
        ),
        (answer("[{'action': 'press_recent', 'point': [-100, -100]}]"), MOBILE, Action("system_button", button="Menu")),
        (answer("[{'action': 'complete', 'point': [-100, -100], 'input_text': 'no input text'}]"), DESKTOP, DONE),
        (answer("[{'action': 'impossible', 'point': [-100, -100]}]"), DESKTOP, REFUSED),
        (answer("[{'action': 'click', 'point': [-100, -100]}]"), MOBILE, R.MISSING_ARGUMENT),
        (answer("[{'action': 'type', 'input_text': 'no input text'}]"), MOBILE, R.MISSING_ARGUMENT),
        (answer("[{'action': 'scroll', 'input_text': 'no input text'}]"), MOBILE, R.MISSING_ARGUMENT),
        (answer("[{'action': 'select', 'point': [1, 2], 'input_text': 'a'}]"), DESKTOP, R.UNKNOWN_ACTION),
        (answer("[{'action': 'close/delete', 'point': [1, 2]}]"), DESKTOP, R.UNKNOWN_ACTION),
        (answer("[{'action': 'click', 'point': [1281, 160]}]"), MOBILE, R.OUT_OF_RANGE),
        (answer("[{'action': 'click', 'point': [1, 2]}] or so"), MOBILE, R.BAD_JSON),
    ],
    "mai_ui": [
        (
            "<thinking>\nHm.\n</thinking>\n" + mobile('{"action": "click", "coordinate": [999, 0]}'),
            MOBILE,
            click(1000, 0),
        ),
        (
            mobile('{"action": "swipe", "direction": "up"}'),
            MOBILE,
            Action("swipe", coordinate=(500, 750), coordinate2=(500, 250)),
        ),
        (
            mobile('{"action": "swipe", "direction": "left", "coordinate": [333, 999]}'),
            MOBILE,
            Action("swipe", coordinate=(1000 / 3, 1000), coordinate2=(0, 1000)),
        ),
        (mobile('{"action": "terminate", "status": "fail"}'), MOBILE, REFUSED),
        (mobile('{"action": "system_button", "button": "back"}'), MOBILE, Action("system_button", button="Back")),
        (mobile('{"action": "wait"}'), MOBILE, Action("wait", time=5)),
        (mobile('{"action": "ask_user", "text": "Which?"}'), MOBILE, Action("interact", text="Which?")),
        (mobile('{"action": "swipe", "direction": "sideways"}'), MOBILE, R.BAD_ARGUMENT),
        (mobile('{"action": "swipe"}'), MOBILE, R.MISSING_ARGUMENT),
        (mobile('{"action": "double_click", "coordinate": [1, 2]}'), MOBILE, R.UNKNOWN_ACTION),
        (mobile('{"action": "system_button", "button": "volume"}'), MOBILE, R.BAD_ARGUMENT),
        (mobile('{"action": "click", "coordinate": [1000, 0]}'), MOBILE, R.OUT_OF_RANGE),
        ('{"action": "wait"}', MOBILE, R.NO_TOOL_CALL),
    ],
    "mai_ui_grounding": [
        (grounded('{"coordinate":[983,174]}'), DESKTOP, left_click(983, 174)),
        (grounded('{"coordinate": [1000, 0]}'), MOBILE, click(1000, 0)),
        ('<answer>{"coordinate":[983,174]}</answer>', DESKTOP, left_click(983, 174)),
        (grounded('{"coordinate":[983,174]}}'), DESKTOP, left_click(983, 174)),
        (grounded('{"coordinate":null}'), DESKTOP, REFUSED),
        (grounded('{"coordinate":[983,174]}}}'), DESKTOP, R.BAD_JSON),
        (grounded("[983,174]"), DESKTOP, R.BAD_JSON),
        (grounded('{"coordinate":[983,174,990,180]}'), DESKTOP, R.BAD_ARGUMENT),
        (grounded('{"coordinate":[983,1740]}'), DESKTOP, R.OUT_OF_RANGE),
        (grounded('{"coordinate":[983,'), DESKTOP, R.BAD_JSON),
        (grounded('{"coordinate":[983,174]}')[:-9], DESKTOP, R.UNCLOSED_TAG),
        (grounded('{"coordinate":[983,174]}') * 2, DESKTOP, R.SEVERAL_TOOL_CALLS),
    ],
    "ui_venus_1_5": [
        (venus("Click(box=(500, 250))"), DESKTOP, left_click(500, 250)),
        (
            venus("Scroll(start=(500, 800), end=(500, 200), direction='down')"),
            MOBILE,
            Action("swipe", coordinate=(500, 800), coordinate2=(500, 200)),
        ),
        (venus("Hotkey(keys=['ctrl', 'c'])"), DESKTOP, Action("key", keys=("ctrl", "c"))),
        (venus("Type(content='</action> (a)')"), MOBILE, Action("type", text="</action> (a)")),
        (venus("CallUser(content='4 items')"), MOBILE, Action("answer", text="4 items")),
        (venus("Finished(content='ok')"), MOBILE, DONE),
        ("[500, 250]", MOBILE, click(500, 250)),
        ("[-1,-1]<|im_end|>", DESKTOP, REFUSED),
        (venus("Drag(start=(1, 2), end=(3, 4))"), DESKTOP, R.UNKNOWN_ACTION),
        (venus("DoubleClick(box=(1, 2))"), MOBILE, R.UNKNOWN_ACTION),
        (venus("Click(box=(500, 250)) Wait()"), DESKTOP, R.BAD_JSON),
        (venus("Click((500, 250))"), DESKTOP, R.BAD_JSON),
        (venus("Click(box=(1, 2, 3, 4))"), DESKTOP, R.BAD_ARGUMENT),
        (venus("Click(box=(500, 1250))"), DESKTOP, R.OUT_OF_RANGE),
        (venus("Wait()") + venus("Wait()"), DESKTOP, R.SEVERAL_TOOL_CALLS),
        ("<think>Hm.<action>Wait()</action>", DESKTOP, R.UNCLOSED_TAG),
        ("[500, 250, 3, 4]", MOBILE, R.BAD_ARGUMENT),
        ("Wait()", MOBILE, R.NO_TOOL_CALL),
    ],
    "gui_owl_eval": [
        (desktop('{"action": "left_click", "coordinate": [712, 45]}'), DESKTOP, left_click(712, 45)),
        ("First (1, 2), then (3,4).", DESKTOP, left_click(3, 4)),
        ("It is at (3, 4). " + desktop('{"action": "left_click", "coordinate": [712, 45]}'), DESKTOP, left_click(3, 4)),
        ("[1, 2] or [3, 4]", MOBILE, click(3, 4)),
        ("(0, 0)", DESKTOP, left_click(0, 0)),
        (desktop('{"action": "terminate", "status": "failure"}'), DESKTOP, REFUSED),
        (desktop('{"action": "terminate", "status": "failure"}'), MOBILE, REFUSED),
        ("[712,45]", DESKTOP, R.NO_TOOL_CALL),
        ("[712,  45]", DESKTOP, R.NO_TOOL_CALL),
        ("I cannot find it.", DESKTOP, R.NO_TOOL_CALL),
        (desktop('{"action": "terminate", "status": "success"}'), DESKTOP, R.NO_TOOL_CALL),
        ("(3, 1004)", DESKTOP, R.OUT_OF_RANGE),
        ("", DESKTOP, R.NO_TOOL_CALL),
    ],
}
CASES = [(name, *case) for name, cases in STRINGS.items() for case in cases]


@pytest.mark.parametrize("name, text, family, expected", CASES)
def test_output(name, text, family, expected):
    dialect = dialects.get(name)
    if isinstance(expected, Action):
        action = dialect.parse(text, family, shown=SHOWN).action
        for point in ("coordinate", "coordinate2"):
            wanted, got = getattr(expected, point), getattr(action, point)
            assert (got is None) == (wanted is None)
            assert wanted is None or got == pytest.approx(wanted)
        assert {**vars(action), "coordinate": 0, "coordinate2": 0} == {
            **vars(expected),
            "coordinate": 0,
            "coordinate2": 0,
        }
    else:
        with pytest.raises(ParseError) as caught:
            dialect.parse(text, family, shown=SHOWN)
        assert caught.value.reason == expected, caught.value


def test_every_dialect_is_covered():
    assert set(STRINGS) == set(dialects.DIALECTS)
    for name, cases in STRINGS.items():
        kinds = collections.Counter(isinstance(case[2], Action) for case in cases)
        assert min(kinds[True], kinds[False]) >= 3, name


@pytest.mark.parametrize("name", sorted(STRINGS))
@pytest.mark.parametrize("text", ["", " ", "\x00", "<", "(" * 3000, "[" * 3000, "{" * 3000, "'\\u", "Action: a(" * 500])
def test_noise_is_a_parse_error(name, text):
    dialect = dialects.get(name)
    for family in dialect.rules():
        for noise in (text, answer(text), venus(text), mobile(text), seed(text), f"Action: type(content='{text}"):
            with pytest.raises(ParseError):
                dialect.parse(noise, family, shown=SHOWN)


@pytest.mark.parametrize("name", sorted(STRINGS))
def test_any_cut_is_an_action_or_a_parse_error(name):
    dialect = dialects.get(name)
    for text, family, _ in STRINGS[name]:
        for end in range(len(text)):
            try:
                dialect.parse(text[:end], family, shown=SHOWN)
            except ParseError:
                pass
