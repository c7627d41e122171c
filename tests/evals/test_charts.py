"""Charts: the drawing's coordinates against the numbers, and what is left out."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from gui_owl_jax.evals import charts
from gui_owl_jax.evals.charts import Bar, Series, Shade


def parse(figure: str) -> ElementTree.Element:
    return ElementTree.fromstring(figure)  # raises where the markup is not well-formed


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]


def draw(*series: Series, **options) -> ElementTree.Element:
    return parse(charts.line_chart(series, title="Loss", x_label="step", **options))


def test_line_goes_through_the_data():
    line = draw(Series("loss", [0, 5, 10], [0.0, 0.5, 1.0]), limits=(0.0, 1.0)).find(".//*[@class='line']")
    left, right = charts.LEFT, charts.WIDTH - charts.RIGHT
    top, bottom = charts.TOP, charts.HEIGHT - charts.BOTTOM
    middle = ((left + right) / 2, (top + bottom) / 2)
    np.testing.assert_allclose(points(line.get("d")), [(left, bottom), middle, (right, top)], atol=0.06)


def test_axis_labels_stand_at_their_values():
    figure = draw(Series("share", [0, 100], [0.0, 1.0]), style=charts.PERCENT, limits=(0.0, 1.0))
    places = {tick.text: (float(tick.get("x")), float(tick.get("y"))) for tick in figure.iter("text")}
    assert places["0 %"][1] - 4 == pytest.approx(charts.HEIGHT - charts.BOTTOM)
    assert places["100 %"][1] - 4 == pytest.approx(charts.TOP)
    assert places["50 %"][1] == pytest.approx((places["0 %"][1] + places["100 %"][1]) / 2)
    assert places["100"][0] == pytest.approx(charts.WIDTH - charts.RIGHT)
    assert "step" in places


def test_points_that_are_not_finite_are_left_out():
    line = draw(Series("loss", [1, 2, 3, 4], [1.0, math.nan, math.inf, 3.0])).find(".//*[@class='line']")
    assert len(points(line.get("d"))) == 2
    assert charts.line_chart([Series("loss", [1, 2], [math.nan] * 2)], title="", x_label="") == ""
    assert charts.line_chart([], title="", x_label="") == ""
    assert charts.line_chart([Series("loss", [], [])], title="", x_label="") == ""


def test_one_point_is_a_dot():
    figure = draw(Series("loss", [7], [0.3]))
    assert len(figure.findall(".//circle")) == 1


def test_a_gap_interrupts_the_line():
    x = [1, 2, 3, 4, 20, 21, 22, 23]
    line = draw(Series("success", x, [0.5] * 8)).find(".//*[@class='line']").get("d")
    assert line.count("M") == 2 and line.count("L") == 6


def test_long_lines_are_thinned_and_keep_their_mean():
    y = np.random.default_rng(0).normal(size=5000)
    line = charts._finite(Series("loss", range(5000), y))
    assert len(line.x) <= charts.MAX_POINTS
    size = math.ceil(5000 / charts.MAX_POINTS)
    np.testing.assert_allclose(line.y[3], y[3 * size : 4 * size].mean())


def test_logarithmic_axis_where_values_span_decades():
    figure = draw(Series("loss", [0, 1, 2], [10.0, 1.0, 0.1]), log=True)
    ys = [y for _, y in points(figure.find(".//*[@class='line']").get("d"))]
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.11)
    near = draw(Series("loss", [0, 1, 2], [3.0, 2.0, 1.0]), log=True)
    assert "0" in [tick.text for tick in near.iter("text")]  # a linear axis from 0
    assert draw(Series("loss", [0, 1, 2], [100.0, 0.0, 1.0]), log=True) is not None


def test_shades_cover_their_stretch_and_have_one_legend():
    shades = [Shade(0.5, 2.5, "c0", "mobile"), Shade(2.5, 4.5, "c2", "web")]
    figure = draw(Series("success", [1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4]), shades=shades)
    first, second = figure.findall(".//rect")
    start, width = float(first.get("x")), float(first.get("width"))
    assert start == pytest.approx(charts.LEFT)  # clipped to the axis
    assert start + width == pytest.approx(float(second.get("x")), abs=0.11)
    key = parse(charts.shade_key([*shades, *shades], "Background:"))
    assert [i.tail for i in key.iter("i")] == ["mobile", "web"]
    assert charts.shade_key([], "Background:") == ""


def test_bars_and_whiskers_have_the_right_heights():
    bars = [Bar("sft", 0.5, 0.25, 0.75, "g2", "5 of 10"), Bar("mrpo", math.nan, 0, 1, "g3")]
    figure = parse(charts.bar_chart([("mobile", bars)], title="Success"))
    (bar,) = figure.findall(".//rect")
    base = charts.HEIGHT - charts.BOTTOM
    full = base - (charts.TOP + 8)
    assert float(bar.get("height")) == pytest.approx(full / 2, abs=0.06)
    assert float(bar.get("y")) + float(bar.get("height")) == pytest.approx(base, abs=0.11)
    whisker = figure.find(".//*[@class='whisker']").get("d")
    low, high = re.match(r"M[\d.]+ ([\d.]+)V([\d.]+)", whisker).groups()
    assert float(low) == pytest.approx(base - full / 4, abs=0.06)
    assert float(high) == pytest.approx(base - 3 * full / 4, abs=0.06)
    assert "50 % (5 of 10), 95 % interval 25 % to 75 %" in figure.find(".//title").text
    assert charts.bar_chart([("mobile", bars[1:])], title="") == ""
    assert charts.bar_chart([("mobile", [])], title="") == ""


def test_drawings_speak_and_escape():
    figure = draw(Series("<b>&", [1, 2], [0.25, 0.75]), style=charts.PERCENT)
    drawing = figure.find("svg")
    assert drawing.get("role") == "img"
    assert "<b>& from 25 % to 75 %" in drawing.get("aria-label")
    figure = parse(charts.bar_chart([("<i>", [Bar("<u>", 1.0, 1.0, 1.0, "g1", "<s>")])], title="<script>"))
    assert figure.find("figcaption").text == "<script>"
    assert "<i>: <u> 100 %" in figure.find("svg").get("aria-label")


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.2, 0.9), (-3, 4), (0, 80), (10, 900), (1e-6, 5e-6), (2, 2.0001)])
def test_ticks_are_round_and_inside(low, high):
    found = charts.ticks(low, high, 5)
    assert 2 <= len(found) <= 11
    assert all(low - 1e-12 <= tick <= high + 1e-12 for tick in found)
    step = found[1] - found[0]
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(mantissa - nice) for nice in (1, 2, 5, 10)) < 1e-6


def test_ticks_of_an_empty_range():
    assert charts.ticks(3.0, 3.0, 5) == [3.0]


@pytest.mark.parametrize("window", [1, 3, 5, 9])
def test_smoothing_against_brute_force(window):
    values = np.random.default_rng(1).normal(size=17)
    expected = []
    for index in range(17):
        reach = min(window // 2, index, 16 - index)
        expected.append(values[index - reach : index + reach + 1].mean())
    np.testing.assert_allclose(charts.smooth(values, window), expected)
    np.testing.assert_allclose(charts.smooth(np.array([0, 3, 6, 0]), 3), [0, 3, 3, 0])
