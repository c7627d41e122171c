"""Model outputs: what is tolerated, what is refused, and the faults of published runners that must not come back."""

from __future__ import annotations

import json
import re

import pytest

from gui_owl_jax.agent.actions import TOOL_KIND, Action
from gui_owl_jax.agent.devices import DeviceFamily, tool_name
from gui_owl_jax.agent.errors import DataError, ParseError, ParseReason
from gui_owl_jax.agent.parsing import parse_response, render_response

MOBILE, DESKTOP, WEB = DeviceFamily
CLICK = Action("click", coordinate=(512.0, 384.0))
GOOD = '{"name": "mobile_use", "arguments": {"action": "click", "coordinate": [512, 384]}}'


def call(payload: str, conclusion: str = "Tap Send.") -> str:
    return f"Action: {conclusion}\n<tool_call>\n{payload}\n</tool_call>"


def mobile(arguments: str) -> str:
    return call(f'{{"name": "mobile_use", "arguments": {arguments}}}')


def click(coordinate: str) -> str:
    return mobile(f'{{"action": "click", "coordinate": {coordinate}}}')


def typed(text: str) -> str:
    return mobile(f'{{"action": "type", "text": {text}}}')


# Outputs with one reading.
RIGHT = {
    "as published": (call(GOOD), CLICK),
    "on one line": (f"Action: Tap Send. <tool_call>{GOOD}</tool_call>", CLICK),
    "no newline before the closing tag": (f"Action: Tap Send.\n<tool_call>\n{GOOD}</tool_call>", CLICK),
    "blank lines and windows newlines": (
        f"\r\n\r\nAction: Tap Send.\r\n\r\n<tool_call>\r\n{GOOD}\r\n</tool_call>\r\n",
        CLICK,
    ),
    "indented json": (call(json.dumps(json.loads(GOOD), indent=4)), CLICK),
    "compact json": (call(json.dumps(json.loads(GOOD), separators=(",", ":"))), CLICK),
    "arguments first": (
        call('{"arguments": {"coordinate": [512, 384], "action": "click"}, "name": "mobile_use"}'),
        CLICK,
    ),
    "end tokens": (call(GOOD) + "<|im_end|>\n<|endoftext|>", CLICK),
    "no action line": (f"<tool_call>\n{GOOD}\n</tool_call>", CLICK),
    "two action lines": (f"Action: Tap Back.\n{call(GOOD)}", CLICK),
    "think": (f"<think>\nHm.\n</think>\n\n{call(GOOD)}", CLICK),
    "thinking": (f"<thinking>Hm.</thinking>{call(GOOD)}", CLICK),
    "think opened by the prompt": (f"Hm.\n</think>\n\n{call(GOOD)}", CLICK),
    "a call inside the thought": (f"<think>Not {click('[1, 1]')} yet.</think>\n{call(GOOD)}", CLICK),
    "coordinate as floats": (click("[512.0, 384.0]"), CLICK),
    "coordinate as strings": (click('["512", "384"]'), CLICK),
    "coordinate as decimal strings": (click('[" 512.0", "384.00 "]'), CLICK),
    "coordinate in exponent form": (click("[5.12e2, 3.84E+2]"), CLICK),
    "coordinate without a space": (click("[512,384]"), CLICK),
    "coordinate at a corner": (click("[0, 1000]"), Action("click", coordinate=(0, 1000))),
    "coordinate at another corner": (click("[1000, 0]"), Action("click", coordinate=(1000, 0))),
    "null for absent arguments": (
        mobile('{"action": "click", "coordinate": [512, 384], "text": null, "time": null}'),
        CLICK,
    ),
    "escapes": (typed(r'"a\"b\\c\/d\u4e2d\n"'), Action("type", text='a"b\\c/d中\n')),
    "surrogate pair": (typed(r'"\ud83d\ude00"'), Action("type", text="😀")),
    "raw newline and tab in a string": (typed('"one\ntwo\tthree"'), Action("type", text="one\ntwo\tthree")),
    "tags in a string": (
        typed('"</tool_call><tool_call></think><|im_end|>"'),
        Action("type", text="</tool_call><tool_call></think><|im_end|>"),
    ),
    "time as a string": (mobile('{"action": "wait", "time": "2"}'), Action("wait", time=2.0)),
}

R = ParseReason

# Outputs that are no action.
WRONG = {
    "empty": ("", R.NO_TOOL_CALL),
    "prose": ("I would tap Send at (512, 384).", R.NO_TOOL_CALL),
    "action line alone": ("Action: Tap Send.", R.NO_TOOL_CALL),
    "bare json": (GOOD, R.NO_TOOL_CALL),
    "call only inside the thought": (f"<think>{call(GOOD)}</think>\nAction: Tap Send.", R.NO_TOOL_CALL),
    "tag in capitals": (call(GOOD).replace("tool_call", "TOOL_CALL"), R.NO_TOOL_CALL),
    "full-width tag": (call(GOOD).replace("<tool_call>", "＜tool_call＞"), R.NO_TOOL_CALL),
    "ui-tars call": ("Thought: hm\nAction: click(point='<point>512 384</point>')", R.NO_TOOL_CALL),
    "ui-r1 answer": (
        "<think>hm</think><answer>[{'action': 'click', 'coordinate': [512, 384]}]</answer>",
        R.NO_TOOL_CALL,
    ),
    "call never closed": (f"Action: Tap Send.\n<tool_call>\n{GOOD}", R.UNCLOSED_TAG),
    "cut off inside the json": (f"Action: Tap Send.\n<tool_call>\n{GOOD[:40]}", R.UNCLOSED_TAG),
    "nothing behind the tag": ("Action: Tap Send.\n<tool_call>", R.UNCLOSED_TAG),
    "opened twice, closed never": (f"<tool_call>\n{GOOD}\n<tool_call>", R.UNCLOSED_TAG),
    "closed before it opens": (f"</tool_call>\n{call(GOOD)}", R.UNCLOSED_TAG),
    "think never closed": (f"<think>\nHm.\n{call(GOOD)}", R.UNCLOSED_TAG),
    "think closed by thinking": (f"<think>Hm.</thinking>\n{call(GOOD)}", R.UNCLOSED_TAG),
    "think closed twice": (f"<think>Hm.</think></think>\n{call(GOOD)}", R.UNCLOSED_TAG),
    "think cut off": ("<thinking>\nThe screen shows", R.UNCLOSED_TAG),
    "two calls": (f"{call(GOOD)}\n{call(GOOD)}", R.SEVERAL_TOOL_CALLS),
    "two objects in one call": (call(f"{GOOD}\n{GOOD}"), R.SEVERAL_TOOL_CALLS),
    "second call inside the first": (
        f"<tool_call>{GOOD}<tool_call>{GOOD}</tool_call></tool_call>",
        R.SEVERAL_TOOL_CALLS,
    ),
    "words behind the call": (f"{call(GOOD)}\nDone!", R.TRAILING_TEXT),
    "v3 conclusion behind the call": (f"{call(GOOD)}\n<conclusion>Tapped.</conclusion>", R.TRAILING_TEXT),
    "imagined answer of the device": (f"{call(GOOD)}<|im_end|>\n<|im_start|>user\n", R.TRAILING_TEXT),
    "empty call": ("<tool_call>\n\n</tool_call>", R.BAD_JSON),
    "python dict": (call("{'name': 'mobile_use', 'arguments': {'action': 'wait', 'time': 1}}"), R.BAD_JSON),
    "python none": (mobile('{"action": "wait", "time": None}'), R.BAD_JSON),
    "trailing comma": (mobile('{"action": "click", "coordinate": [512, 384,]}'), R.BAD_JSON),
    "missing brace": (call(GOOD[:-1]), R.BAD_JSON),
    "one brace too many": (call(GOOD + "}"), R.BAD_JSON),
    "missing quote": (mobile('{"action": "type", "text": "Lunch}'), R.BAD_JSON),
    "comment": (call(GOOD + " // tap"), R.BAD_JSON),
    "markdown fence": (call(f"```json\n{GOOD}\n```"), R.BAD_JSON),
    "a list of calls": (call(f"[{GOOD}]"), R.BAD_JSON),
    "json in a string": (call(json.dumps(GOOD)), R.BAD_JSON),
    "null call": (call("null"), R.BAD_JSON),
    "duplicate key": (mobile('{"action": "click", "coordinate": [512, 384], "coordinate": [1, 1]}'), R.BAD_JSON),
    "full-width colon": (call(GOOD.replace(":", "：")), R.BAD_JSON),
    "typographic quotes": (call(GOOD.replace('"', "“")), R.BAD_JSON),
    "coordinate in 【】": (click("【512, 384】"), R.BAD_JSON),
    "coordinate in （）": (click("（512，384）"), R.BAD_JSON),
    "coordinate in ()": (click("(512, 384)"), R.BAD_JSON),
    "full-width comma": (click("[512，384]"), R.BAD_JSON),
    "full-width digits": (click("[５１２, ３８４]"), R.BAD_JSON),
    "leading zero": (click("[0512, 384]"), R.BAD_JSON),
    "nan": (click("[NaN, 384]"), R.BAD_JSON),
    "infinity": (click("[Infinity, 384]"), R.BAD_JSON),
    "half a surrogate pair": (typed(r'"\ud83d"'), R.BAD_JSON),
    "nested too deeply": (click("[" * 100_000 + "]" * 100_000), R.BAD_JSON),
    "more digits than python reads": (click(f"[{'9' * 5000}, 1]"), R.BAD_JSON),
    "tool of another family": (call(GOOD.replace("mobile_use", "computer_use")), R.WRONG_TOOL),
    "tool with a space": (call(GOOD.replace("mobile_use", "mobile use")), R.WRONG_TOOL),
    "action as the tool": (call('{"name": "click", "arguments": {"coordinate": [512, 384]}}'), R.WRONG_TOOL),
    "no name": (call('{"arguments": {"action": "wait", "time": 1}}'), R.WRONG_TOOL),
    "name is null": (call('{"name": null, "arguments": {"action": "wait", "time": 1}}'), R.WRONG_TOOL),
    "no arguments": (call('{"name": "mobile_use"}'), R.MISSING_ARGUMENT),
    "flat call": (call('{"name": "mobile_use", "action": "wait", "time": 1}'), R.UNKNOWN_ARGUMENT),
    "parameters in place of arguments": (call(GOOD.replace("arguments", "parameters")), R.UNKNOWN_ARGUMENT),
    "arguments as a string": (
        call('{"name": "mobile_use", "arguments": "{\\"action\\": \\"wait\\"}"}'),
        R.BAD_ARGUMENT,
    ),
    "arguments as a list": (mobile('["click", [512, 384]]'), R.BAD_ARGUMENT),
    "arguments null": (mobile("null"), R.BAD_ARGUMENT),
    "no action": (mobile('{"coordinate": [512, 384]}'), R.MISSING_ARGUMENT),
    "action null": (mobile('{"action": null, "coordinate": [512, 384]}'), R.MISSING_ARGUMENT),
    "unknown action": (mobile('{"action": "tap", "coordinate": [512, 384]}'), R.UNKNOWN_ACTION),
    "action of another family": (mobile('{"action": "left_click", "coordinate": [512, 384]}'), R.UNKNOWN_ACTION),
    "action in capitals": (mobile('{"action": "CLICK", "coordinate": [512, 384]}'), R.UNKNOWN_ACTION),
    "action is a number": (mobile('{"action": 1, "coordinate": [512, 384]}'), R.UNKNOWN_ACTION),
    "action is a list": (mobile('{"action": ["click"], "coordinate": [512, 384]}'), R.UNKNOWN_ACTION),
    "coordinate missing": (mobile('{"action": "click"}'), R.MISSING_ARGUMENT),
    "coordinate null": (click("null"), R.MISSING_ARGUMENT),
    "second coordinate missing": (mobile('{"action": "swipe", "coordinate": [1, 2]}'), R.MISSING_ARGUMENT),
    "misspelt argument": (mobile('{"action": "click", "coordinates": [512, 384]}'), R.MISSING_ARGUMENT),
    "extra argument": (mobile('{"action": "click", "coordinate": [512, 384], "text": "x"}'), R.UNKNOWN_ARGUMENT),
    "invented argument": (mobile('{"action": "click", "coordinate": [512, 384], "speed": 1}'), R.UNKNOWN_ARGUMENT),
    "coordinate empty": (click("[]"), R.BAD_ARGUMENT),
    "one number": (click("[512]"), R.BAD_ARGUMENT),
    "three numbers": (click("[512, 384, 1]"), R.BAD_ARGUMENT),
    "a box": (click("[500, 370, 524, 398]"), R.BAD_ARGUMENT),
    "nested": (click("[[512, 384]]"), R.BAD_ARGUMENT),
    "nested numbers": (click("[[512], [384]]"), R.BAD_ARGUMENT),
    "x and y by name": (click('{"x": 512, "y": 384}'), R.BAD_ARGUMENT),
    "a plain number": (click("512"), R.BAD_ARGUMENT),
    "one string": (click('"[512, 384]"'), R.BAD_ARGUMENT),
    "one string in （）": (click('"（512，384）"'), R.BAD_ARGUMENT),
    "point tag": (click('"<point>512 384</point>"'), R.BAD_ARGUMENT),
    "booleans": (click("[true, false]"), R.BAD_ARGUMENT),
    "a null": (click("[512, null]"), R.BAD_ARGUMENT),
    "words": (click('["left", "top"]'), R.BAD_ARGUMENT),
    "nan as a string": (click('["nan", "384"]'), R.BAD_ARGUMENT),
    "full-width digits as strings": (click('["５１２", "３８４"]'), R.BAD_ARGUMENT),
    "percent": (click('["51%", "38%"]'), R.BAD_ARGUMENT),
    "an expression": (click('["500+12", "384"]'), R.BAD_ARGUMENT),
    "code": (click("""["__import__('os').getpid()", "384"]"""), R.BAD_ARGUMENT),
    "negative": (click("[-1, 384]"), R.OUT_OF_RANGE),
    "beyond 1000": (click("[512, 1001]"), R.OUT_OF_RANGE),
    "pixels of a phone": (click("[540, 2280]"), R.OUT_OF_RANGE),
    "a float just beyond": (click("[1000.001, 384]"), R.OUT_OF_RANGE),
    "a float beyond all floats": (click("[1e999, 384]"), R.OUT_OF_RANGE),
    "an integer beyond all floats": (click(f"[{'9' * 400}, 1]"), R.OUT_OF_RANGE),
    "text is a number": (typed("42"), R.BAD_ARGUMENT),
    "text is a list": (typed('["Lunch"]'), R.BAD_ARGUMENT),
    "unknown button": (mobile('{"action": "system_button", "button": "Power"}'), R.BAD_ARGUMENT),
    "unknown status": (mobile('{"action": "terminate", "status": "done"}'), R.BAD_ARGUMENT),
    "negative time": (mobile('{"action": "wait", "time": -1}'), R.OUT_OF_RANGE),
}


@pytest.mark.parametrize("case", RIGHT)
def test_one_reading(case):
    text, action = RIGHT[case]
    assert parse_response(text, MOBILE).action == action


@pytest.mark.parametrize("case", WRONG)
def test_no_action(case):
    text, reason = WRONG[case]
    with pytest.raises(ParseError) as caught:
        parse_response(text, MOBILE)
    assert caught.value.reason == reason, str(caught.value)
    assert len(str(caught.value)) < 600  # an error is read in a log, whatever the model wrote


@pytest.mark.parametrize("member", ["coordinate", "text", "speed", "action"])
def test_deep_nesting_is_an_error_at_every_depth(member):
    for depth in [*range(1, 60), *range(60, 1100, 5)]:
        nested = "[" * depth + "1" + "]" * depth
        with pytest.raises(ParseError):
            parse_response(
                mobile(
                    f'{{"action": "click", "{member}": {nested}}}'.replace('"action": "click", "action"', '"action"')
                ),
                MOBILE,
            )


def test_there_are_enough_malformed_outputs_and_every_reason_occurs():
    assert len(WRONG) >= 40
    assert {reason for _, reason in WRONG.values()} == set(ParseReason)


@pytest.mark.parametrize(
    ("text", "thought", "conclusion"),
    [
        (call(GOOD), "", "Tap Send."),
        (call(GOOD, "  Tap  Send. \n"), "", "Tap  Send."),
        (call(GOOD, "Tap\n  Send."), "", "Tap Send."),
        (call(GOOD, "Open Action: Replay."), "", "Open Action: Replay."),
        (f"<tool_call>{GOOD}</tool_call>", "", ""),
        (f"Tap Send.\n<tool_call>{GOOD}</tool_call>", "Tap Send.", ""),
        (f"<think>\na\nb\n</think>\n\n{call(GOOD)}", "a\nb", "Tap Send."),
        (f"<think>\n\n</think>\n\n{call(GOOD)}", "", "Tap Send."),
        (f"<think>a</think>\n<thinking>b</thinking>\n{call(GOOD)}", "a\nb", "Tap Send."),
        (f"a</think>\n<think>b</think>{call(GOOD)}", "a\nb", "Tap Send."),
        (f"<think>a</think>Well.\n{call(GOOD)}", "a\nWell.", "Tap Send."),
        (f"Thought: a\n{call(GOOD)}", "Thought: a", "Tap Send."),
        (f"Action: Tap Back.\n{call(GOOD)}", "Action: Tap Back.", "Tap Send."),
        (f"Action: Tap Send.\n<think>a</think>\n<tool_call>{GOOD}</tool_call>", "a", "Tap Send."),
        # a reflex of published parsers: the thought is cut at its own "Action: "
        (
            f"<think>Next Action: tap.\nAction: swipe?</think>{call(GOOD)}",
            "Next Action: tap.\nAction: swipe?",
            "Tap Send.",
        ),
    ],
)
def test_thought_and_conclusion(text, thought, conclusion):
    parsed = parse_response(text, MOBILE)
    assert (parsed.thought, parsed.conclusion, parsed.action) == (thought, conclusion, CLICK)


def test_render_is_the_published_format():
    assert render_response("Tap Send.", CLICK, MOBILE) == call(GOOD)
    assert render_response("Tap Send.", CLICK, MOBILE, "Hm.") == f"<think>\nHm.\n</think>\n\n{call(GOOD)}"
    assert '"text": "中😀"' in render_response("Type.", Action("type", text="中😀"), MOBILE)
    assert '"coordinate": [0.5, 1000]' in render_response("", Action("click", coordinate=(0.5, 1000.0)), MOBILE)


def test_render_then_parse_gives_the_same(actions, rng):
    conclusions = ["Tap Send.", "", "输入 “x”。", "Action: twice", 'Say "hi" {now} \\n', "Step 3: 5 > 4"]
    thoughts = ["", "One.", "Two\n\nlines, Action: none", "a <tool_call> in words", "Action: no\n<think> </thinking>"]
    for family, action in actions:
        conclusion, thought = rng.choice(conclusions), rng.choice(thoughts)
        text = render_response(conclusion, action, family, thought)
        parsed = parse_response(text, family)
        assert (parsed.thought, parsed.conclusion, parsed.action) == (thought, conclusion, action)
        assert parsed.call.name == tool_name(family)
        assert render_response(parsed.conclusion, parsed.action, family, parsed.thought) == text


def test_a_cut_response_is_never_an_action(actions, rng):
    for family, action in rng.sample(actions, 60):
        text = render_response("Do it.", action, family)
        for end in range(len(text)):
            with pytest.raises(ParseError):
                parse_response(text[:end], family)


def test_a_damaged_response_gives_an_error_or_the_numbers_that_stand_there(actions, rng):
    """One character deleted: where an action still comes out, its points are the ones a reader finds in the text."""
    survivors = 0
    for family, action in actions:
        text = render_response("Do it.", action, family)
        for _ in range(10):
            place = rng.randrange(len(text))
            damaged = text[:place] + text[place + 1 :]
            try:
                parsed = parse_response(damaged, family).action
            except ParseError:
                continue
            survivors += 1
            assert f'"action": "{parsed.kind}"' in damaged.replace('"action":"', '"action": "')
            for name in ("coordinate", "coordinate2"):
                found = re.search(rf'"{name}": ?\[([0-9.]+), ?([0-9.]+)\]', damaged)
                expected = None if found is None else (float(found[1]), float(found[2]))
                assert getattr(parsed, name) == expected
    assert survivors > 100


@pytest.mark.parametrize("conclusion", ["two\nlines", "two\rlines", "a <tool_call>", "</think>", "<thinking>"])
def test_render_refuses_a_conclusion_that_would_not_come_back(conclusion):
    with pytest.raises(DataError, match="one line without tags"):
        render_response(conclusion, CLICK, MOBILE)


def test_render_refuses_a_thought_that_would_not_come_back():
    with pytest.raises(DataError, match="must not hold </think>"):
        render_response("Tap.", CLICK, MOBILE, "a </think> b")


def test_extra_tools():
    text = call('{"name": "search_files", "arguments": {"query": null, "deep": true}}', "Search.")
    parsed = parse_response(text, DESKTOP, extra_tools={"search_files"})
    assert parsed.action == Action(TOOL_KIND, text="search_files")
    assert parsed.call.arguments == {"query": None, "deep": True}
    with pytest.raises(ParseError) as caught:
        parse_response(text, DESKTOP)
    assert caught.value.reason == ParseReason.WRONG_TOOL


# Faults of the published runners (GUI-Owl-1.5 and UI-TARS), each with the output that shows it.


def desktop(arguments: str) -> str:
    return call(f'{{"name": "computer_use", "arguments": {arguments}}}')


def test_regression_drag_and_sideways_scroll_of_the_desktop():
    drag = parse_response(desktop('{"action": "left_click_drag", "coordinate": [1, 2]}'), DESKTOP).action
    assert drag == Action("left_click_drag", coordinate=(1, 2))
    assert parse_response(desktop('{"action": "hscroll", "pixels": -3}'), DESKTOP).action == Action(
        "hscroll", pixels=-3
    )
    with pytest.raises(ParseError) as caught:
        parse_response(desktop('{"action": "drag", "coordinate": [1, 2]}'), DESKTOP)
    assert caught.value.reason == ParseReason.UNKNOWN_ACTION


def test_regression_json_is_not_a_python_literal():
    parsed = parse_response(desktop(r'{"action": "type", "text": "a\/b", "time": null}'), DESKTOP)
    assert parsed.action == Action("type", text="a/b")
    with pytest.raises(ParseError) as caught:
        parse_response(desktop('{"action": "type", "text": true}'), DESKTOP)
    assert caught.value.reason == ParseReason.BAD_ARGUMENT


def test_regression_go_back_is_spelt_as_in_the_schema():
    text = call('{"name": "browser_use", "arguments": {"action": "go_back"}}')
    assert parse_response(text, WEB).action == Action("go_back")
    with pytest.raises(ParseError) as caught:
        parse_response(text.replace("go_back", "goback"), WEB)
    assert caught.value.reason == ParseReason.UNKNOWN_ACTION


@pytest.mark.parametrize(
    "text",
    [
        """it's "quoted" with \\ and 'more'""",
        "f(x)\n\ng(x)",
        "first line\nsecond line\n",
        "start\\n",
        "point=3, start_box='(1,2)'",
        "### Action ###\nclick",
        "Action: not a line of the response",
        "",
        " ",
        "{}",
        "'); import os #",
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_regression_typed_text_survives(text, ascii_only):
    for family, action in [(MOBILE, Action("type", text=text)), (WEB, Action("type", label=1, text=text))]:
        rendered = render_response("Type it.", action, family)
        if ascii_only:
            head, payload, tail = rendered.rpartition("\n<tool_call>\n")[0], rendered.split("\n")[2], "\n</tool_call>"
            rendered = f"{head}\n<tool_call>\n{json.dumps(json.loads(payload))}{tail}"
        assert parse_response(rendered, family).action == action


def test_regression_a_point_in_prose_is_no_coordinate():
    text = f"Action: Tap (3, 4), not [5, 6].\n<tool_call>{GOOD}</tool_call>"
    assert parse_response(text, MOBILE).action == CLICK
