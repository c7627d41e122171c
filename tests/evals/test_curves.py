"""Panels from lines of metrics: what is drawn, what is left out, and the family of an update."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from gui_owl_jax.evals import curves


def titles(figures: list[str]) -> list[str]:
    return [ElementTree.fromstring(figure).find("figcaption").text for figure in figures]


def mrpo_lines(count: int = 12) -> list[dict]:
    """Four updates per device family in turn."""
    lines = []
    for step in range(1, count + 1):
        family = ("mobile", "desktop", "web")[(step - 1) // 4 % 3]
        weights = {f"weight_{name}": float(name == family) for name in ("mobile", "desktop", "web")}
        shares = {"informative_share": 0.5, "swap_share": 0.25, "empty_share": 0.5}
        lines.append({"step": step, "success": 0.5, f"success_{family}": 0.5, "loss": 0.1, **shares, **weights})
    return lines


def test_only_logged_metrics_are_drawn():
    assert curves.learning_curves([]) == ([], [])
    drawn, further = curves.learning_curves([{"step": s, "loss": 1.0 / s, "speed": 2.0} for s in range(1, 5)])
    assert titles(drawn) == ["Loss"]
    assert titles(further) == ["speed"]
    assert curves.collapse_curves([{"step": 1, "loss": 1.0}]) == []


def test_every_number_is_shown_somewhere():
    lines = mrpo_lines()
    drawn, further = curves.learning_curves(lines)
    assert titles(drawn) == ["Success of training rollouts", "Loss"]
    assert titles(further) == ["success", "weight_desktop", "weight_mobile", "weight_web"]
    assert titles(curves.collapse_curves(lines)) == ["Groups of an update"]


@pytest.mark.parametrize("value", [None, "words", True, [1], float("nan")])
def test_values_that_cannot_be_drawn_are_skipped(value):
    drawn, further = curves.learning_curves([{"step": 1, "loss": value}, {"step": 2, "loss": value}])
    assert drawn == further == []
    drawn, _ = curves.learning_curves([{"step": 1, "loss": value}, {"step": 2, "loss": 0.5}, {"step": 3, "loss": 0.25}])
    assert "loss from 0.5 to 0.25" in drawn[0]


def test_lines_without_a_step_are_skipped():
    drawn, _ = curves.learning_curves([{"loss": 5.0}, {"step": 2, "loss": 0.5}, {"step": 3, "loss": 0.25, "lr": None}])
    assert "from 0.5 to 0.25" in drawn[0]


def test_stretches_of_device_families():
    found = [(shade.name, shade.low, shade.high) for shade in curves.shades(mrpo_lines())]
    assert found == [("mobile", 0.5, 4.5), ("desktop", 4.5, 8.5), ("web", 8.5, 12.5)]
    named = [{"step": step, "family": "web" if step > 2 else "mobile"} for step in range(1, 5)]
    assert [(shade.name, shade.low, shade.high) for shade in curves.shades(named)] == [
        ("mobile", 0.5, 2.5),
        ("web", 2.5, 4.5),
    ]


def test_mixtures_and_single_families_have_no_background():
    mixed = [{"step": s, "weight_mobile": 1 / 3, "weight_desktop": 1 / 3, "weight_web": 1 / 3} for s in range(4)]
    assert curves.shades(mixed) == []
    assert curves.shades([{"step": s, "weight_mobile": 1.0} for s in range(4)]) == []
    assert curves.shades([{"step": 1}, {"family": "web"}, {"step": 2, "family": "watch"}]) == []
