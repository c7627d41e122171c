from __future__ import annotations

import collections
import dataclasses
import math

import pytest

from gui_owl_jax.agent import parsing
from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.action_rules import RULES, ActionRule
from gui_owl_jax.evals.action_score import answer_with, judge, oracle, score
from gui_owl_jax.evals.benchmark import ActionLabel, Answer, Benchmark, Box, Choice, Item, Look
from gui_owl_jax.evals.score import count_reasons

MOBILE = DeviceFamily.MOBILE
SIZE = (1000, 2000)


class Plain:
    """The format of GUI-Owl-1.5 as `agent.parsing` reads and writes it."""

    name = "plain"
    scale = 1000.0

    def parse(self, text, family, shown=None):
        return parsing.parse_response(text, family)

    def render(self, action, family, *, thought="", conclusion="", shown=None):
        return parsing.render_response(conclusion, action, family, thought)


PLAIN = Plain()


def item(label, item_id="a", boxes=(), size=SIZE, **facets):
    return Item(item_id, "Do it", ActionLabel(label, boxes), MOBILE, size=size, facets=facets)


def verdict(label, action, rule=None, boxes=()):
    step = item(label, boxes=boxes)
    return judge(step, answer_with(step, action, PLAIN, SIZE), rule or ActionRule(), PLAIN)


CLICK = Action("click", coordinate=(500, 500))
REFUSE = Action("terminate", status="failure")


@pytest.mark.parametrize(
    ("label", "action", "reason"),
    [
        (CLICK, Action("click", coordinate=(600, 500)), "hit"),
        (CLICK, Action("click", coordinate=(700, 500)), "miss"),
        (CLICK, Action("long_press", coordinate=(500, 500), time=1), "wrong_type"),
        (CLICK, REFUSE, "refused"),
        (CLICK, Action("wait", time=1), "wrong_type"),
        (Action("long_press", (500, 500), time=2), Action("long_press", (500, 500), time=9), "hit"),
        (Action("swipe", (500, 750), (500, 250)), Action("swipe", (100, 900), (100, 800)), "hit"),
        (Action("swipe", (500, 750), (500, 250)), Action("swipe", (500, 250), (500, 750)), "wrong_direction"),
        (Action("type", text="green tea"), Action("type", text="Tea green"), "hit"),
        (Action("type", text="green tea"), Action("type", text="coffee"), "wrong_text"),
        (Action("open", text="Maps"), Action("open", text="maps"), "hit"),
        (Action("open", text="Maps"), CLICK, "wrong_type"),
        (Action("system_button", button="Back"), Action("system_button", button="Back"), "hit"),
        (Action("system_button", button="Back"), Action("system_button", button="Home"), "wrong_button"),
        (Action("wait", time=2), Action("wait", time=30), "hit"),
        (Action("terminate", status="success"), REFUSE, "refused"),
        (REFUSE, REFUSE, "hit"),
        (REFUSE, Action("terminate", status="success"), "wrong_status"),
        (Action("key", text="power"), Action("key", text="power"), "hit"),
        (Action("key", text="power"), Action("key", text="the power"), "miss"),
    ],
)
def test_reasons(label, action, reason):
    result = verdict(label, action)
    assert (result.reason, result.right) == (reason, reason == "hit")


def test_points_are_in_pixels_of_the_image():
    assert verdict(CLICK, Action("click", coordinate=(600, 250))).point == (600, 500)
    assert verdict(CLICK, Action("swipe", (500, 250), (500, 750))).point is None


def test_an_icon_may_be_clicked_in_place_of_opening_the_app():
    label, icon = Action("open", text="Maps"), Box(100, 100, 200, 200)
    middle, outside = Action("click", coordinate=(150, 75)), Action("click", coordinate=(500, 500))
    assert verdict(label, middle, RULES["ui_s1"], (icon,)).reason == "hit"
    assert verdict(label, outside, RULES["ui_s1"], (icon,)).reason == "miss"
    assert verdict(label, middle, RULES["ui_s1"]).reason == "wrong_type"
    assert verdict(label, middle, RULES["gui_r1"], (icon,)).reason == "wrong_type"


def test_ui_s1_takes_the_elements_that_hold_the_recorded_point():
    far, around = Box(0, 0, 100, 100), Box(0, 900, 1000, 1100)
    assert verdict(CLICK, Action("click", coordinate=(50, 25)), RULES["ui_s1"], (far,)).reason == "miss"
    assert verdict(CLICK, Action("click", coordinate=(20, 480)), RULES["ui_s1"], (around,)).reason == "hit"


def test_no_answer_unparsable_answer():
    failed = judge(item(CLICK), Answer("a", failure="image missing"), ActionRule(), PLAIN)
    assert (failed.reason, failed.detail) == ("failed", "image missing")
    look = Look("no idea", (0, 0, *SIZE), SIZE)
    assert judge(item(CLICK), Answer("a", (look,)), ActionRule(), PLAIN).reason == "unparsable"
    with pytest.raises(DataError, match="Choice"):
        judge(Item("a", "?", Choice("A", ("A",)), MOBILE), Answer("a"), ActionRule(), PLAIN)


def click_text(x, y):
    return PLAIN.render(Action("click", coordinate=(x, y)), MOBILE, conclusion="Tap.")


def test_the_last_look_is_mapped_through_its_window():
    looks = (
        Look(click_text(1, 1), (0, 0, *SIZE), SIZE),
        Look(click_text(500, 250), (300.0, 900.0, 600.0, 1300.0), (600, 800)),
    )
    assert judge(item(CLICK), Answer("a", looks, SIZE), ActionRule(), PLAIN).point == (450, 1000)


def test_the_screen_of_a_rule():
    """The annotations declare 1000x2000, the image has 1440x3120, and the recorded point is one of its pixels."""
    step = item(Action("click", coordinate=(1300, 1400)))  # pixel (1300, 2800)
    look = Look(click_text(1300 / 1440 * 1000, 2800 / 3120 * 1000), (0, 0, 1440, 3120), (1440, 3120))
    answer = Answer("a", (look,), (1440, 3120))
    image = judge(step, answer, ActionRule(click="ui_r1", screen="image"), PLAIN)
    declared = judge(step, answer, ActionRule(click="ui_r1", screen="declared"), PLAIN)
    assert (image.reason, declared.reason) == ("hit", "miss")
    assert image.point == pytest.approx((1300, 2800)) == declared.point
    share = ActionRule(click="ui_s1", screen="image")
    for by, right in ((0.0399, True), (0.0401, False)):
        moved = Look(click_text((1300 / 1440 - by) * 1000, 2800 / 3120 * 1000), (0, 0, 1440, 3120), (1440, 3120))
        assert judge(step, Answer("a", (moved,), (1440, 3120)), share, PLAIN).right is right


def steps():
    return Benchmark(
        "steps",
        (
            item(CLICK, "1_0", action="click", episode="1"),
            item(Action("type", text="tea"), "1_1", action="type", episode="1"),
            item(CLICK, "2_0", action="click", episode="2"),
            item(CLICK, "2_1", action="click", episode="2"),
            item(Action("wait", time=1), "2_2", action="wait", episode="2"),
            item(CLICK, "2_3", action="click", episode="2"),
        ),
    )


def test_averages_tables_and_episodes():
    benchmark = steps()
    answers = {each.item_id: oracle(each, PLAIN) for each in benchmark.items}
    answers["2_1"] = answer_with(benchmark.items[3], Action("click", coordinate=(0, 0)), PLAIN, SIZE)
    answers["2_3"] = answer_with(benchmark.items[5], Action("wait", time=1), PLAIN, SIZE)
    result = score(benchmark, answers.values(), RULES["gui_r1"], PLAIN)
    assert result.rule == f"{RULES['gui_r1'].name},dialect=plain,scale=1000.0"
    counts = {name: (average.successes, average.trials) for name, average in result.averages.items()}
    assert list(counts) == ["step", "type", "click", "click_if_typed", "episode", "progress"]
    assert counts["step"] == (4, 6)
    assert counts["type"] == (5, 6)
    assert counts["click"] == (2, 4)
    assert counts["click_if_typed"] == (2, 3)
    assert counts["episode"] == (1, 2)
    assert result.averages["progress"].mean == pytest.approx((1 + 1 / 4) / 2)
    assert set(result.tables) == {"action", "type by action"}
    assert result.tables["action"]["click"].successes == 2
    assert result.tables["type by action"]["click"].successes == 3
    assert count_reasons(result.verdicts) == {"hit": 4, "miss": 1, "wrong_type": 1}


def test_an_item_without_an_answer_fails_and_episodes_need_their_facet():
    benchmark = steps()
    result = score(benchmark, [], ActionRule(), PLAIN)
    assert count_reasons(result.verdicts) == {"failed": 6}
    assert result.averages["progress"].mean == 0
    loose = dataclasses.replace(benchmark, items=tuple(dataclasses.replace(i, facets={}) for i in benchmark.items))
    result = score(loose, map(lambda each: oracle(each, PLAIN), loose.items), ActionRule(), PLAIN)
    assert list(result.averages) == ["step", "type", "click", "click_if_typed"]
    assert result.tables == {}


@pytest.fixture(scope="module")
def ui_r1(conformance):
    from data.benchmarks import read

    return read("android_control_low_ui_r1", conformance / "android_control")


@pytest.fixture(scope="module")
def ui_r1_answers(ui_r1):
    return [oracle(each, PLAIN) for each in ui_r1.items]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_an_oracle_is_always_right_on_ui_r1(ui_r1, ui_r1_answers, rule):
    result = score(ui_r1, ui_r1_answers, rule, PLAIN)
    for name, trials in (("step", 7868), ("type", 7868), ("click", 5074), ("click_if_typed", 5074)):
        assert (result.averages[name].successes, result.averages[name].trials) == (trials, trials)


def shifted(step, answer, way, by):
    """The oracle's answer with its click moved by (across, down) pixels in a direction that stays on the screen."""
    size = answer.size
    x, y = (value * side / 1000 for value, side in zip(step.target.action.coordinate, step.size))
    for turn in range(8):
        angle = way + turn * math.pi / 4
        point = (x + by[0] * math.cos(angle), y + by[1] * math.sin(angle))
        if 0 <= point[0] <= size[0] and 0 <= point[1] <= size[1]:
            text = click_text(*(value * 1000 / side for value, side in zip(point, size)))
            return dataclasses.replace(answer, looks=(dataclasses.replace(answer.looks[0], response=text),))
    raise AssertionError("no direction stays on the screen")


def radius(click, size):
    return {
        "ui_r1": (151.2, 151.2),
        "gui_r1": (140, 140),
        "clawgui": (368.4509464, 368.4509464),
        "ui_s1": (0.04 * size[0], 0.04 * size[1]),
        "aitw": (0.14 * size[0], 0.14 * size[1]),
    }[click]


@pytest.mark.parametrize("name", RULES)
def test_a_shifted_oracle_falls_off_where_the_rule_says(ui_r1, ui_r1_answers, name):
    rule = RULES[name]
    pairs = list(zip(ui_r1.items, ui_r1_answers))[::9]
    part = Benchmark("part", tuple(step for step, _ in pairs))
    clicks = sum(step.facets["action"] == "click" for step in part.items)
    assert clicks > 500
    for share, right in ((0.9999, clicks), (1.0001, 0)):
        answers = []
        for index, (step, answer) in enumerate(pairs):
            if step.facets["action"] == "click":
                by = tuple(share * length for length in radius(rule.click, answer.size))
                answer = shifted(step, answer, index, by)
            answers.append(answer)
        result = score(part, answers, rule, PLAIN)
        assert result.averages["click"].successes == right
        assert result.averages["step"].successes == len(pairs) - clicks + right
        assert result.averages["type"].successes == len(pairs)


def test_the_hard_coded_screen_of_ui_r1_puts_larger_screens_out_of_reach(ui_r1, ui_r1_answers):
    """UI-R1 stretches all answers to 1080x2400: the points recorded beyond it are missed even by an oracle."""
    result = score(ui_r1, ui_r1_answers, dataclasses.replace(RULES["ui_r1"], screen="declared"), PLAIN)
    beyond = {problem.where for problem in ui_r1.problems if problem.kind == "label_outside_image"}
    missed = {each.item_id for each in result.verdicts if not each.right}
    assert missed and missed <= beyond


def test_an_oracle_is_always_right_on_ui_s1(conformance):
    from data.benchmarks import read

    benchmark = read("android_control_low_ui_s1", conformance / "android_control")
    answers = [oracle(each, PLAIN) for each in benchmark.items]
    result = score(benchmark, answers, RULES["ui_s1"], PLAIN)
    assert result.averages["step"].successes == 8444
    assert (result.averages["episode"].successes, result.averages["episode"].trials) == (1543, 1543)
    assert result.averages["progress"].mean == 1
    assert collections.Counter(each.reason for each in result.verdicts) == {"hit": 8444}
