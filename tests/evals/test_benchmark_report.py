from __future__ import annotations

import html.parser
import math
import re

import numpy as np
import pytest

from gui_owl_jax.agent.actions import Action
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.benchmark import ActionLabel, Answer, Benchmark, Box, Item, Look, Polygon, Problem, Refusal
from gui_owl_jax.evals.benchmark_report import MAX_SIDE, BenchmarkReport, distance, picture, render, write_report
from gui_owl_jax.evals.score import FAILED, HIT, MISS, UNPARSABLE, Verdict, make_score

EVIL = "<script>alert('x')</script>&\"'\ud83d"
SIZE = (200, 100)
VOID = {"meta", "img", "br", "rect", "circle", "polygon", "path", "line"}


class Page(html.parser.HTMLParser):
    """Checks that tags are closed in order, and collects them with their attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def find(self, name: str, **attributes) -> list[dict]:
        return [a for tag, a in self.tags if tag == name and attributes.items() <= a.items()]


def item(name: str, target=None, **changes) -> Item:
    fields = {"image": f"{name}.png", "size": SIZE, "facets": {"platform": "mac"}, **changes}
    return Item(name, f"Press {name}", target or Box(10, 10, 20, 20), DeviceFamily.DESKTOP, **fields)


def answer(name: str, words: str = "(1, 2)", looks: int = 1) -> Answer:
    windows = [(0.0, 0.0, 200.0, 100.0), (50.0, 0.0, 150.0, 50.0)]
    return Answer(name, tuple(Look(words, window, SIZE) for window in windows[:looks]), SIZE)


def page(items, answers, verdicts, images=None, **changes) -> BenchmarkReport:
    benchmark = Benchmark("small", tuple(items), changes.pop("problems", ()))
    opened = images or (lambda name: np.full((SIZE[1], SIZE[0], 3), 80, np.uint8))
    score = make_score(benchmark, changes.pop("rule", "rule=a"), verdicts)
    return BenchmarkReport(benchmark, answers, score, {"policy": "runs/a"}, opened, **changes)


FAR = [Verdict("near", False, MISS, (25.0, 15.0)), Verdict("far", False, MISS, (190.0, 90.0))]


def absent(name: str) -> np.ndarray:
    raise DataError(f"image {name} is missing")


def test_the_worst_answers_come_first_with_box_and_point():
    items = [item("near"), item("far"), item("good")]
    verdicts = [*FAR, Verdict("good", True, HIT, (15.0, 15.0))]
    text = render(page(items, [answer(i.item_id) for i in items], verdicts))
    found = Page(text)
    assert text.index("Press far") < text.index("Press near") and "Press good" not in text
    frames = found.find("rect", **{"class": "target"})
    assert len(frames) == 2 and {(f["x"], f["y"], f["width"], f["height"]) for f in frames} == {
        ("10", "10", "10", "10")
    }
    dots = [(c["cx"], c["cy"]) for c in found.find("circle", **{"class": "dot"})]
    assert dots == [("190", "90"), ("25", "15")]
    assert {svg["viewbox"] for svg in found.find("svg") if "preserveaspectratio" in svg} == {"0 0 200 100"}


def test_only_the_worst_are_shown():
    text = render(page([item("near"), item("far")], [answer("near"), answer("far")], FAR, worst=1))
    assert "Press far" in text and "Press near" not in text


def test_answers_without_a_point_are_shown_reasons_in_turn():
    names = [f"u{i}" for i in range(9)] + ["f0"]
    verdicts = [Verdict(name, False, UNPARSABLE, detail="no_tool_call: none") for name in names[:-1]]
    verdicts.append(Verdict("f0", False, FAILED, detail="image f0.png is missing"))
    answers = [answer(name, "words of u") for name in names[:-1]] + [Answer("f0", failure="image f0.png is missing")]
    text = render(page([item(name) for name in names], answers, verdicts, images=absent, worst=3))
    assert all(f"Press {name}<" in text for name in ("u0", "f0", "u1")) and "Press u2" not in text
    assert re.search(r"<b>9</b><span>unparsable answers", text) and re.search(
        r"<b>1</b><span>items that could not", text
    )
    assert "1 × image f0.png is missing" in text


def test_it_works_without_images():
    text = render(page([item("near"), item("far")], [answer("near"), answer("far")], FAR, images=absent))
    assert not Page(text).find("img") and text.count('class="absent">image ') == 2


def test_everything_is_escaped_and_nothing_is_loaded(tmp_path):
    evil = item("near", facets={EVIL: EVIL}, image=EVIL)
    evil = Item(EVIL, EVIL, evil.target, evil.family, evil.image, evil.size, evil.facets)
    verdicts = [Verdict(EVIL, False, EVIL, (25.0, 15.0), EVIL)]
    problems = (Problem(EVIL, EVIL, EVIL),)
    answers = [Answer(EVIL, (Look(EVIL, (0.0, 0.0, 200.0, 100.0), SIZE),), SIZE)]
    made = page([evil, item("b")], [*answers, Answer("b", failure=EVIL)], [*verdicts, Verdict("b", False, FAILED)],
                problems=problems, rule=EVIL)  # fmt: skip
    found = write_report(tmp_path / "sub" / "report.html", made)
    text = found.read_text()
    assert "<script" not in text and text.count("&lt;script&gt;") >= 10
    names = {name for tag, attributes in Page(text).tags for name in attributes}
    assert not any(name.startswith("on") for name in names)
    sources = [value for _, a in Page(text).tags for name, value in a.items() if name in ("src", "href")]
    assert all(value.startswith(("data:image/jpeg;base64,", "#")) for value in sources)
    assert [path.name for path in found.parent.iterdir()] == ["report.html"]


def test_tables_have_intervals_and_problems_are_counted():
    items = [item("a"), item("b", facets={"platform": "linux"})]
    problems = [Problem(f"a.json[{i}]", "box_outside_image", "the box leaves the image") for i in range(7)]
    problems.append(Problem("a.json[9]", "missing_field", "bbox is missing", fatal=True))
    verdicts = [Verdict("a", True, HIT, (15.0, 15.0)), Verdict("b", False, MISS, (25.0, 15.0))]
    text = render(page(items, [answer("a"), answer("b")], verdicts, problems=tuple(problems)))
    assert "By platform, in %" in text and "<td><b>100.0</b></td><td>20.7 – 100.0</td><td>1</td><td>1</td>" in text
    assert "box_outside_image <small>7</small>" in text and "and 2 more" in text
    assert "missing_field (entry left out) <small>1</small>" in text and "points=" not in text


def test_the_second_look_is_drawn():
    verdicts = [Verdict("near", False, MISS, (25.0, 15.0))]
    made = page([item("near")], [answer("near", looks=2)], verdicts)
    (window,) = Page(render(made)).find("rect", **{"class": "window"})
    assert (window["x"], window["y"], window["width"], window["height"]) == ("50", "0", "100", "50")
    assert "<b>2</b><span>calls of the model" in render(made)


@pytest.mark.parametrize(
    ("target", "point", "pixels"),
    [
        (Box(10, 10, 20, 20), (15, 15), 0),
        (Box(10, 10, 20, 20), (20, 10), 0),
        (Box(10, 10, 20, 20), (23, 24), 5),
        (Box(10, 10, 20, 20), (7, 15), 3),
        (Polygon(((10, 10), (20, 10), (10, 20))), (23, 24), 5),
        (ActionLabel(Action("click", coordinate=(500, 500))), (103, 54), 5),
        (ActionLabel(Action("wait", time=2)), (103, 54), None),
        (Refusal(), (1, 1), None),
    ],
)
def test_distances_are_shares_of_the_diagonal(target, point, pixels):
    found = distance(item("a", target), point, SIZE)
    assert found is None if pixels is None else math.isclose(found, pixels / math.hypot(*SIZE))


def test_targets_of_every_kind_are_drawn():
    polygon = item("p", Polygon(((1, 2), (30, 2), (1, 40))))
    action = item("a", ActionLabel(Action("click", coordinate=(500, 500)), (Box(1, 1, 5, 5),)))
    refusal = item("r", Refusal())
    verdicts = [Verdict(name, False, MISS, (150.0, 90.0)) for name in "par"]
    found = Page(render(page([polygon, action, refusal], [answer(name) for name in "par"], verdicts)))
    assert [p["points"] for p in found.find("polygon", **{"class": "target"})] == ["1,2 30,2 1,40"]
    assert len(found.find("rect", **{"class": "target"})) == 1
    assert [(c["cx"], c["cy"]) for c in found.find("circle", **{"class": "target"})] == [("100", "50")]
    assert len(found.find("img")) == 3


def test_screenshots_are_scaled_down():
    uri, size = picture(np.zeros((2160, 3840, 3), np.uint8))
    assert size == (MAX_SIDE, MAX_SIDE * 9 // 16) and len(uri) < 20_000
    assert picture(np.zeros((1, 5000, 3), np.uint8))[1] == (MAX_SIDE, 1)
