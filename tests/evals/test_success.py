"""Success rates, differences and tables against counts made by hand."""

from __future__ import annotations

import copy
import json
import math
from html.parser import HTMLParser

import pytest

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals import success as scores
from gui_owl_jax.evals.statistics import wilson_interval


def row(task_id: str, family: str = "mobile", outcome: int | None = 1, app: str = "messages", template: str = "open"):
    failure = "timeout: no answer" if outcome is None else ""
    return {
        "task_id": task_id,
        "family": family,
        "app": app,
        "template": template,
        "outcome": outcome,
        "failure": failure,
        "steps": 2,
        "parse_errors": 0,
    }


def stage(name: str, rows: list[dict], **changes) -> dict:
    data = {
        "stage": name,
        "policy": f"runs/demo/{name}",
        "tasks": rows,
        "grounding": {"hits": 7, "trials": 10, "families": {"mobile": {"hits": 7, "trials": 10}}},
        "scrambled": [dict(r, outcome=0) for r in rows],
        "model": {"parameters": 1_000_000},
        "commit": "abc",
        "seconds": 3.5,
    }
    return {**data, **changes}


def outcomes(family: str, values: list[int | None], **names) -> list[dict]:
    return [row(f"{family}/{index}", family, value, **names) for index, value in enumerate(values)]


def three_families(mobile: list, desktop: list, web: list) -> list[dict]:
    return outcomes("mobile", mobile) + outcomes("desktop", desktop) + outcomes("web", web)


def test_a_file_is_read_into_the_same_numbers(tmp_path):
    data = stage("sft", outcomes("mobile", [1, 0, None]) + outcomes("web", [1]))
    path = tmp_path / "sft.json"
    path.write_text(json.dumps(data))
    result = scores.read_stage(path)
    assert (result.stage, result.policy, result.parameters, result.seconds) == ("sft", "runs/demo/sft", 1_000_000, 3.5)
    assert [r.outcome for r in result.tasks] == [1, 0, None, 1]
    assert [str(r.family) for r in result.tasks] == ["mobile"] * 3 + ["web"]
    assert result.tasks[2].failure == "timeout: no answer"
    assert len(result.scrambled) == 4
    assert result.grounding.to_json() == data["grounding"]


def test_controls_that_were_not_run_are_none():
    result = scores.stage_from_json(stage("sft", [row("a")], grounding=None, scrambled=None))
    assert result.grounding is None and result.scrambled is None
    assert scores.headline([result])[0][1]["grounding"] is None


@pytest.mark.parametrize("field", list(stage("sft", [])))
def test_every_field_is_required(tmp_path, field):
    data = stage("sft", [row("a")])
    del data[field]
    path = tmp_path / "sft.json"
    path.write_text(json.dumps(data))
    with pytest.raises(DataError) as error:
        scores.read_stage(path)
    assert str(path) in str(error.value) and f"'{field}' is missing" in str(error.value)


@pytest.mark.parametrize("field", list(row("a")))
def test_every_field_of_a_task_is_required(field):
    rows = [row("a"), row("b")]
    del rows[1][field]
    with pytest.raises(DataError, match=rf"file: tasks\[1\]: field '{field}' is missing"):
        scores.stage_from_json(stage("sft", rows, scrambled=None), "file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["tasks"][0].update(outcome=2), "'outcome' is 2"),
        (lambda d: d["tasks"][0].update(outcome=True), "'outcome' is bool"),
        (lambda d: d["tasks"][0].update(outcome="1"), "'outcome' is str"),
        (lambda d: d["tasks"][0].update(family="watch"), "'family' is 'watch'"),
        (lambda d: d["tasks"].append(dict(d["tasks"][0])), "occurs twice"),
        (lambda d: d.update(tasks={}), "'tasks' is dict, must be list"),
        (lambda d: d["tasks"].append(7), r"tasks\[1\] is int"),
        (lambda d: d["grounding"].update(hits=11), "'hits' is 11"),
        (lambda d: d["grounding"]["families"].update(web={"hits": 1}), "web: field 'trials' is missing"),
        (lambda d: d.update(seconds=None), "'seconds' is NoneType"),
        (lambda d: d["model"].clear(), "'parameters' is missing"),
    ],
)
def test_malformed_fields_are_named(change, message):
    data = copy.deepcopy(stage("sft", [row("a")], scrambled=None))
    change(data)
    with pytest.raises(DataError, match=message):
        scores.stage_from_json(data, "file")


@pytest.mark.parametrize("text", ["{", "", "[1, 2]", '"words"', "null"])
def test_files_that_are_no_object_are_named(tmp_path, text):
    path = tmp_path / "mrpo.json"
    path.write_text(text)
    with pytest.raises(DataError, match="mrpo.json"):
        scores.read_stage(path)
    with pytest.raises(DataError, match="absent.json"):
        scores.read_stage(tmp_path / "absent.json")


def test_environment_failures_are_counted_and_left_out():
    rows = scores.stage_from_json(stage("sft", outcomes("mobile", [1, 0, None, None, 1]))).tasks
    rate = scores.success(rows)
    assert (rate.successes, rate.trials) == (2, 3)
    assert (rate.interval.low, rate.interval.high) == wilson_interval(2, 3)
    assert scores.environment_failures(rows) == 2
    assert math.isnan(scores.success(rows[2:4]).mean)


def test_rates_by_field():
    rows = scores.stage_from_json(
        stage(
            "sft",
            outcomes("mobile", [1, 1, 0], app="messages", template="open")
            + outcomes("web", [0, 1], app="shop", template="add")
            + [row("x", "mobile", 0, app="settings", template="toggle")],
        )
    ).tasks
    counts = {name: (r.successes, r.trials) for name, r in scores.success_by(rows, "family").items()}
    assert counts == {"mobile": (2, 4), "web": (1, 2)}
    assert list(scores.success_by(rows, "app")) == ["messages", "shop", "settings"]
    assert scores.success_by(rows, "template")["toggle"].successes == 0
    with pytest.raises(DataError, match="color"):
        scores.success_by(rows, "color")


def test_the_average_weighs_families_equally():
    rows = scores.stage_from_json(stage("sft", three_families([1] * 8, [0, 0], [1, 0]))).tasks
    rate = scores.average_success(rows)
    assert rate.mean == pytest.approx((1 + 0 + 0.5) / 3)  # not 9 of 12
    assert rate.interval.low < rate.mean < rate.interval.high


def test_the_average_needs_an_outcome_in_every_family_that_was_tried():
    rows = scores.stage_from_json(stage("sft", three_families([1, 1], [None, None], [1, 0]))).tasks
    assert math.isnan(scores.average_success(rows).mean)
    assert math.isnan(scores.average_success(()).mean)
    cells = dict(scores.headline([scores.stage_from_json(stage("sft", three_families([1, 1], [None], [1])))]))["sft"]
    assert cells["desktop"] is None and cells["average"] is None and cells["web"].mean == 1


def test_comparison_pairs_by_task_whatever_the_order():
    before = three_families([0, 0, 1, 0], [0, 1, None, 0], [1, 1, 1])
    after = three_families([1, 0, 1, 1], [1, 1, 1, 0], [0, 1, 1])
    found = scores.compare(
        scores.stage_from_json(stage("sft", before)), scores.stage_from_json(stage("mrpo", after[::-1]))
    )
    # mobile +2 of 4; desktop +1 of 3, its third task has no outcome before; web -1 of 3
    assert found.mean == pytest.approx((2 / 4 + 1 / 3 - 1 / 3) / 3)
    assert (found.pairs, found.better, found.worse) == (10, 3, 1)
    assert found.t.low < found.mean < found.t.high


def test_comparison_without_enough_common_tasks_is_none():
    one = scores.stage_from_json(stage("sft", three_families([0, 1], [1, 0], [1])))
    assert scores.compare(one, one) is None
    other = scores.stage_from_json(stage("mrpo", [row("elsewhere")]))
    assert scores.compare(one, other) is None
    assert scores.differences([one, other]) == []


def stages() -> list[scores.StageResult]:
    rows = {
        "mrpo": three_families([1] * 9 + [0], [1] * 7 + [0] * 3, [1] * 8 + [None, 0]),
        "random": three_families([0] * 10, [0] * 10, [0] * 10),
        "sft": three_families([1] * 5 + [0] * 5, [1] * 4 + [0] * 6, [1] * 6 + [0] * 4),
    }
    return [scores.stage_from_json(stage(name, tasks)) for name, tasks in rows.items()]


def test_text_table_is_aligned_and_says_what_was_measured():
    lines = scores.text_table(stages()).splitlines()
    table = lines[1:6]
    assert len({len(line) for line in table}) == 1
    assert [line.split()[0] for line in table] == ["stage", "-" * len(table[0]), "random", "sft", "mrpo"]
    # Every column ends at the same character in every row.
    ends = [table[0].index(name) + len(name) for name in scores.COLUMNS]
    for line in table[2:]:
        assert all(line[end - 1] in "]-" for end in ends)
    low, high = wilson_interval(9, 10)
    assert f"90.0 [{100 * low:.1f}, {100 * high:.1f}]" in table[4]
    assert any(line.startswith("mrpo - sft: +") and "over 29 paired tasks" in line for line in lines)
    assert "mrpo: 1 of 30 episodes left out, their environment failed" in lines


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += f"{data} "


def test_html_table_has_the_same_numbers_and_escapes():
    results = stages() + [scores.stage_from_json(stage("<script>x", [row("a")], scrambled=None))]
    cells = Cells()
    cells.feed(scores.html_table(results))
    assert [r[0].strip() for r in cells.rows] == ["stage", "random", "sft", "mrpo", "<script>x"]
    assert {len(r) for r in cells.rows} == {len(scores.COLUMNS) + 1}
    assert cells.rows[3][1].split()[0] == "90.0"
    assert cells.rows[3][5].split()[0] == "70.0"
    assert cells.rows[4][6].strip() == "–"
    assert "script" not in cells.tags
