"""The page as a whole: well-formed, self-contained, escaped, and complete whatever is missing."""

from __future__ import annotations

import base64
import dataclasses
import io
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from envs.virtual import policies, tasks, world
from gui_owl_jax.agent.devices import DEVICE_FAMILIES
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.parsing import render_response
from gui_owl_jax.agent.trajectory import Step, Trajectory
from gui_owl_jax.evals import report as reports
from gui_owl_jax.evals.report import Report, render, write_report
from gui_owl_jax.evals.success import GroundingScore, StageResult, TaskRow

VOID = {"meta", "img", "br", "link", "input", "hr"}
ATTACK = "<script>alert('x')</script>\"&<b>"


class Page(HTMLParser):
    """Checks that tags are balanced while it collects what a test may ask for."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, tag: str = "") -> str:
        return " ".join(data for parent, data in self.texts if not tag or parent == tag)


def stage(name: str, rate: float, **fields) -> StageResult:
    """20 tasks of each family, of which a share succeeds."""
    rows = [
        TaskRow(f"{family}/{index}", family, f"{family}-app{index % 2}", f"template{index % 4}", int(index < 20 * rate))
        for family in DEVICE_FAMILIES
        for index in range(20)
    ]
    return StageResult(name, f"runs/demo/{name}", tuple(rows), parameters=1_500_000, commit="c0ffee", **fields)


def all_stages() -> list[StageResult]:
    rates = {"random": 0.0, "pretrain": 0.05, "sft": 0.5, "mrpo": 0.9}
    grounding = GroundingScore(57, 60, {"mobile": (57, 60)})
    return [stage(name, rate, grounding=grounding, scrambled=stage(name, 0.05).tasks) for name, rate in rates.items()]


def metrics(stage_name: str, count: int = 24) -> list[dict]:
    lines: list[dict] = []
    for step in range(1, count + 1):
        line = {"step": step, "loss": 3.0 / step, "grad_norm": 1.0 + step % 3, "lr": 1e-3, "finite": True}
        if stage_name == "mrpo":
            family = str(DEVICE_FAMILIES[(step - 1) // 8 % 3])
            shares = {"informative_share": 0.75, "swap_share": 0.25, "empty_share": 0.25}
            line |= {"success": 0.6, f"success_{family}": 0.6, f"weight_{family}": 1.0, "kl": 0.01 * step, **shares}
            line |= {"rollouts_per_informative_group": 20.0}
        else:
            line["accuracy"] = 1 - 1 / step
        lines.append(line)
    return lines


def played(family, solve: bool) -> Trajectory:
    """One episode in the virtual world: by its script, or doing nothing."""
    task = tasks.tasks(family, "heldout", 3, seed=5)[2]
    device = world.World()
    result = device.reset(task)
    script = policies.policy(task, device)
    steps = []
    while not result.done:
        conclusion, action = next(script) if solve else ("Wait.", None)
        response = render_response(conclusion, action, family, thought="Look.") if action else f"Action: {ATTACK}"
        error = "" if action else "no_tool_call"
        steps.append(Step(result.observation, "Look.", conclusion, action, response, error))
        result = device.step(action)
    return Trajectory(
        task_id=task.task_id,
        app=task.app,
        family=family,
        instruction=task.instruction,
        steps=tuple(steps),
        outcome=int(result.success),
        source="policy",
        seed=task.seed,
        metadata={"template": task.template},
    )


@pytest.fixture(scope="module")
def episodes() -> list[Trajectory]:
    return [played(family, solve) for family in DEVICE_FAMILIES for solve in (True, False)]


@pytest.fixture(scope="module")
def whole(episodes) -> Report:
    return Report(
        stages=all_stages()[::-1],
        curves={name: metrics(name) for name in ("pretrain", "sft", "mrpo")},
        trajectories={"mrpo": episodes, "sft": episodes[:2]},
        commands=["bash launch/quickstart.sh"],
        commit="0123456789abcdef",
        configs={"mrpo": {"seed": 0, "rl": {"group": 8}}},
    )


@pytest.fixture(scope="module")
def page(whole) -> Page:
    return Page(render(whole))


def test_every_section_is_there(page):
    names = [attributes["id"] for attributes in page.all("section")]
    assert names == ["results", "control", "learning", "collapse", "apps", "episodes", "reproduce"]
    assert [a["href"] for a in page.all("a")] == [f"#{name}" for name in names]
    assert page.all("html")[0]["lang"] == "en"


def test_the_headline_names_the_last_stage_and_its_gain(page):
    text = page.text()
    assert "90.0 %" in text and "average success after MRPO" in text
    assert "+40.0" in text and "points from SFT to MRPO" in text
    assert "95.0 %" in text and "of grounding clicks hit" in text
    assert "5.0 %" in text and "with scrambled screens" in text


def test_the_page_needs_nothing_beside_itself(whole, page):
    text = render(whole)
    assert "<script" not in text and "url(" not in text and "@import" not in text
    assert not {"script", "link", "iframe", "object", "audio", "video"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,"))


def test_every_screenshot_is_the_one_that_was_seen(page, episodes):
    shown = []
    for image in page.all("img"):
        assert image["alt"] and image["class"] == "crisp"
        picture = Image.open(io.BytesIO(base64.b64decode(image["src"].split(",")[1])))
        assert picture.format == "PNG"
        assert int(image["width"]) == 2 * picture.width and int(image["height"]) == 2 * picture.height
        shown.append(np.asarray(picture.convert("RGB")))
    seen = [step.observation.image for episode in episodes for step in episode.steps]
    seen += [step.observation.image for episode in episodes[:2] for step in episode.steps]
    assert len(shown) == len(seen)
    for image in seen:
        assert any(image.shape == other.shape and (image == other).all() for other in shown)


def test_charts_carry_their_content_as_text(page):
    charts = [attributes for attributes in page.all("svg") if attributes.get("role") == "img"]
    labels = [attributes["aria-label"] for attributes in charts]
    assert any(label.startswith("Success on held-out tasks. Bar chart. mobile: random 0 %") for label in labels)
    assert any("mrpo: own screens 90 %, scrambled screens 5 %" in label for label in labels)
    assert any(label.startswith("Groups of an update. Line chart over update 1 to 24: informative") for label in labels)
    assert sum(label.startswith("Loss. ") for label in labels) == 3


def test_both_outcomes_of_every_family_are_shown(page):
    outcomes = [data for parent, data in page.texts if parent == "p" and data in ("success", "failure")]
    assert sorted(outcomes) == ["failure"] * 4 + ["success"] * 4  # three families, and one again for SFT
    stages = [attributes for attributes in page.all("details") if attributes.get("class") == "stage"]
    assert ["open" in attributes for attributes in stages] == [True, False]  # the last stage comes first, and open


def test_it_can_be_reproduced(page):
    assert "bash launch/quickstart.sh" in page.text("pre")
    assert '"group": 8' in page.text("pre")
    assert "0123456789ab" in page.text("code")
    assert "runs/demo/sft" in page.text("td")


def test_untrusted_text_stays_text(episodes):
    rows = (TaskRow("a", DEVICE_FAMILIES[0], ATTACK, ATTACK, 1),)
    bad = StageResult(ATTACK, ATTACK, rows, scrambled=rows, commit=ATTACK)
    report = Report(
        [bad, stage("sft", 0.5)],
        curves={ATTACK: [{"step": 1, ATTACK: 1.0, "loss": 2.0}], "mrpo": [{"step": 1, "family": ATTACK, "loss": 1.0}]},
        trajectories={ATTACK: episodes},
        commands=[ATTACK],
        commit=ATTACK,
        configs={ATTACK: {ATTACK: ATTACK}},
        title=ATTACK,
    )
    text = render(report)
    page = Page(text)
    assert "<script" not in text
    assert ATTACK in page.text("h1") and ATTACK in page.text("h3") and ATTACK in page.text("pre")


@pytest.mark.parametrize(
    "missing",
    [
        {"curves": {}},
        {"trajectories": {}},
        {"commands": (), "commit": "", "configs": {}},
        {"curves": {"mrpo": []}},
        {"curves": {"mrpo": [{}]}},
        {"curves": {"mrpo": [{"step": 1}]}},
        {"curves": {"mrpo": [{"step": 1, "loss": None, "kl": "high"}]}},
        {"curves": {"other": [{"step": 1, "speed": 1.0}, {"step": 2}]}},
        {"trajectories": {"mrpo": []}},
        {"stages": [stage("sft", 0.5)]},
        {"stages": [StageResult("random", "random", ())]},
        {"stages": [stage("mrpo", 1.0), stage("night", 0.2)]},
        {"configs": {"mrpo": None}},
    ],
)
def test_whatever_is_missing_is_left_out(whole, missing):
    page = Page(render(dataclasses.replace(whole, **missing)))
    assert page.all("section")
    assert "nan" not in page.text().lower().split()


def test_without_stages_there_is_no_report(tmp_path):
    with pytest.raises(DataError, match="nothing to report"):
        write_report(tmp_path / "report.html", Report([]))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_earlier_file(tmp_path, whole, monkeypatch):
    path = write_report(tmp_path / "deep" / "report.html", whole)
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(reports.os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_report(path, Report([stage("sft", 0.1)]))
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_halves_of_surrogate_pairs_can_be_written(tmp_path, episodes):
    step = dataclasses.replace(episodes[0].steps[0], response="\ud83d")
    report = Report([stage("sft", 0.5)], trajectories={"sft": [dataclasses.replace(episodes[0], steps=(step,))]})
    text = write_report(tmp_path / "report.html", report).read_text("utf-8")
    assert "response" in Page(text).text("summary")


def test_the_file_is_kept_small(whole):
    full = render(whole)
    limit = len(full.encode()) - 2000
    small = render(whole, max_bytes=limit)
    assert len(small.encode()) <= limit
    assert "left out to keep the file small" in small and "left out to keep" not in full
    bare = Page(render(whole, max_bytes=0))
    assert bare.all("img") == [] and "6 more left out" in bare.text("p")
