"""Grounding annotations in every published format, from small files; what is malformed is named and left out."""

from __future__ import annotations

import json

import pytest

from data import benchmarks
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.evals.benchmark import Box, Polygon, Refusal

SCREENSPOT = {
    "img_filename": "a.png",
    "bbox": [10, 20, 30, 40],
    "instruction": "open the menu",
    "data_type": "icon",
    "data_source": "ios",
}
PRO = {
    "img_filename": "vscode_mac/a.png",
    "bbox": [10, 20, 30, 40],
    "instruction": "refresh",
    "instruction_cn": "",
    "id": "vscode_macos_0",
    "application": "vscode",
    "platform": "macos",
    "img_size": [2560, 1664],
    "ui_type": "icon",
    "group": "Dev",
}
OSWORLD = {
    "id": "X-0",
    "image_path": "X.png",
    "image_size": [1920, 1080],
    "instruction": "press Save",
    "box_type": "bbox",
    "box_coordinates": [10, 20, 30, 40],
    "GUI_types": ["Button", "Icon"],
}
MMBENCH = {
    "image_path": "a.png",
    "image_size": [1000, 500],
    "instruction": "open it",
    "bbox": [0.1, 0.2, 0.3, 0.4],
    "platform": "os_android",
    "grounding_type": "advanced",
    "data_type": "text",
    "app_name": "Mail",
}
UI_VISION = {
    "image_path": "element_grounding/a.png",
    "image_size": [1920, 1080],
    "prompt_to_evaluate": "zoom in",
    "bbox": [10, 20, 30, 40],
    "platform": "GIMP",
    "element_type": "icon",
}


@pytest.fixture
def write(tmp_path):
    def write(name, entries):
        (tmp_path / name).write_text(entries if isinstance(entries, str) else json.dumps(entries))
        return tmp_path

    return write


def only(benchmark):
    assert benchmark.problems == ()
    (item,) = benchmark.items
    return item


def test_screenspot_has_width_and_height(write):
    item = only(benchmarks.read("screenspot", write("screenspot_mobile.json", [SCREENSPOT])))
    assert item.target == Box(10, 20, 40, 60)
    assert (item.item_id, item.instruction, item.image) == ("screenspot_mobile_0", "open the menu", "a.png")
    assert (item.family, item.size) == (DeviceFamily.MOBILE, None)
    assert item.facets == {"platform": "mobile", "ui_type": "icon", "application": "ios"}


def test_screenspot_v2_reads_its_platforms_and_points_at_pages_by_coordinates(write):
    write("screenspot_web_v2.json", [SCREENSPOT, SCREENSPOT])
    folder = write("screenspot_desktop_v2.json", [SCREENSPOT])
    benchmark = benchmarks.read("screenspot_v2", folder)
    assert [item.item_id for item in benchmark.items] == [
        "screenspot_desktop_v2_0",
        "screenspot_web_v2_0",
        "screenspot_web_v2_1",
    ]
    assert benchmark.items[0].target == Box(10, 20, 40, 60)
    assert {item.family for item in benchmark.items} == {DeviceFamily.DESKTOP}


def test_the_same_numbers_are_another_box_in_another_format(write):
    converted = {**PRO, "application": "screenspot_web_v2", "platform": "v2"}
    item = only(benchmarks.read("screenspot_v2_mai_ui", write("screenspot_web_v2_convert.json", [converted])))
    assert item.target == Box(10, 20, 30, 40)
    assert item.facets == {"platform": "web", "ui_type": "icon"}  # the conversion's other fields say nothing


def test_screenspot_pro_has_corners(write):
    item = only(benchmarks.read("screenspot_pro", write("vscode_macos.json", [PRO])))
    assert (item.item_id, item.target, item.size) == ("vscode_macos_0", Box(10, 20, 30, 40), (2560, 1664))
    assert item.facets == {"group": "Dev", "ui_type": "icon", "platform": "macos", "application": "vscode"}


def test_osworld_g_has_boxes_polygons_and_refusals(write):
    polygon = {**OSWORLD, "id": "X-1", "box_type": "polygon", "box_coordinates": [0, 0, 9, 0, 9, 9]}
    refusal = {**OSWORLD, "id": "X-2", "box_type": "refusal", "box_coordinates": [-1, -1, -1, -1], "GUI_types": "/"}
    benchmark = benchmarks.read("osworld_g", write("OSWorld-G.json", [OSWORLD, polygon, refusal]))
    assert benchmark.problems == ()
    assert [item.target for item in benchmark.items] == [
        Box(10, 20, 40, 60),
        Polygon(((0, 0), (9, 0), (9, 9))),
        Refusal(),
    ]
    assert [item.facets["target"] for item in benchmark.items] == ["rectangle", "polygon", "refusal"]
    assert [item.facets["elements"] for item in benchmark.items] == ["Button, Icon", "Button, Icon", "/"]


def test_original_and_refined_are_never_pooled(write):
    write("OSWorld-G.json", [OSWORLD])
    folder = write("OSWorld-G_refined.json", [{**OSWORLD, "instruction": "press the left button"}])
    assert only(benchmarks.read("osworld_g", folder)).instruction == "press Save"
    assert only(benchmarks.read("osworld_g_refined", folder)).instruction == "press the left button"


def test_polygons_of_the_conversion_are_repaired(write):
    base = {key: PRO[key] for key in ("img_filename", "instruction", "img_size")} | {"ui_type": ["Button"]}
    rows = [
        {**base, "id": "a", "bbox": [100, 200, 300, 400]},
        {**base, "id": "b", "bbox": [100.1, 200.2, 220.3, 400.4, 120.2, 230.2]},  # annotated: (120.2, 200.2)
        {**base, "id": "c", "bbox": [0, 0, 0, 0]},
    ]
    folder = write("OSWorld-G_sspro_format.json", rows)
    benchmark = benchmarks.read("osworld_g_mai_ui", folder)
    assert [item.target for item in benchmark.items] == [
        Box(100, 200, 300, 400),
        Polygon(((100.1, 200.2), (120.2, 200.2), (120.2, 230.2))),
        Refusal(),
    ]
    assert benchmark.name == "osworld_g"
    write("OSWorld-G_refined_sspro_format.json", rows)
    assert benchmarks.read("osworld_g_refined_mai_ui", folder).items == benchmark.items
    write("refine2.json", rows)
    with pytest.raises(DataError, match="give the path"):
        benchmarks.read("osworld_g_refined_mai_ui", folder)


def test_mmbench_boxes_are_shares(write):
    item = only(benchmarks.read("mmbench_gui_l2", write("L2_annotations.json", [MMBENCH])))
    assert item.target == Box(100, 100, 300, 200)
    assert (item.image, item.family) == ("os_android/a.png", DeviceFamily.MOBILE)
    assert item.facets == {"platform": "android", "level": "advanced", "ui_type": "text", "application": "Mail"}


def test_shares_at_one_are_the_whole_image_and_no_pixel(write):
    corner = {**MMBENCH, "bbox": [0, 0, 1, 1]}
    (item,) = benchmarks.read("mmbench_gui_l2", write("L2_annotations.json", [corner])).items
    assert item.target == Box(0, 0, 1000, 500)


def test_ui_vision_orders_corners(write):
    write("element_grounding_spatial.json", [UI_VISION])
    folder = write("element_grounding_basic.json", [{**UI_VISION, "bbox": [30, 40, 10, 20]}])
    benchmark = benchmarks.read("ui_vision", folder)
    assert [item.target for item in benchmark.items] == [Box(10, 20, 30, 40)] * 2
    assert [item.facets["group"] for item in benchmark.items] == ["basic", "spatial"]
    assert benchmark.items[0].facets["application"] == "GIMP"
    assert benchmark.items[0].instruction == "zoom in"


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ("a string", "bad_entry"),
        ({**PRO, "id": "vscode_macos_0"}, "duplicate_id"),
        ({key: value for key, value in PRO.items() if key != "bbox"}, "missing_field"),
        ({**PRO, "id": "x", "bbox": [1, 2, 3]}, "bad_box"),
        ({**PRO, "id": "x", "bbox": "1, 2, 3, 4"}, "bad_field"),
        ({**PRO, "id": "x", "bbox": [1, 2, 3, True]}, "bad_field"),
        ({**PRO, "id": "x", "bbox": [1, 2, 3, float("nan")]}, "bad_field"),
        ({**PRO, "id": "x", "img_size": [0, 100]}, "bad_field"),
        ({**PRO, "id": "x", "img_size": [100.5, 100]}, "bad_field"),
        ({**PRO, "id": "x", "instruction": " "}, "bad_field"),
        ({**PRO, "id": 7}, "bad_field"),
    ],
)
def test_a_malformed_entry_is_one_fatal_problem(write, entry, kind):
    folder = write("vscode_macos.json", [PRO, entry, {**PRO, "id": "last"}])
    benchmark = benchmarks.read("screenspot_pro", folder)
    assert [item.item_id for item in benchmark.items] == ["vscode_macos_0", "last"]
    (problem,) = benchmark.problems
    assert (problem.where, problem.kind, problem.fatal) == ("vscode_macos.json[1]", kind, True)


@pytest.mark.parametrize(
    ("name", "file", "entry", "kind"),
    [
        ("mmbench_gui_l2", "L2_annotations.json", {**MMBENCH, "bbox": [1, 1, 400, 200]}, "bad_box"),
        ("mmbench_gui_l2", "L2_annotations.json", {**MMBENCH, "platform": "beos"}, "bad_field"),
        ("mmbench_gui_l2", "L2_annotations.json", {**MMBENCH, "grounding_type": "hard"}, "bad_field"),
        ("osworld_g", "OSWorld-G.json", {**OSWORLD, "box_type": "circle"}, "bad_field"),
        ("osworld_g", "OSWorld-G.json", {**OSWORLD, "box_type": "polygon"}, "bad_polygon"),
        (
            "osworld_g",
            "OSWorld-G.json",
            {**OSWORLD, "box_type": "polygon", "box_coordinates": [1, 2, 3, 4, 5, 6, 7]},
            "bad_polygon",
        ),
        ("osworld_g", "OSWorld-G.json", {**OSWORLD, "GUI_types": [1]}, "bad_field"),
    ],
)
def test_what_a_format_does_not_know_is_a_fatal_problem(write, name, file, entry, kind):
    benchmark = benchmarks.read(name, write(file, [entry]))
    assert benchmark.items == ()
    assert [(problem.kind, problem.fatal) for problem in benchmark.problems] == [(kind, True)]


@pytest.mark.parametrize("text", ["{not json", '{"a": 1}', "[" * 100_000])
def test_a_file_that_is_no_list_of_entries_is_named(write, text):
    folder = write("vscode_macos.json", text)
    write("word_macos.json", [PRO])
    with pytest.raises(DataError, match="vscode_macos.json"):
        benchmarks.read("screenspot_pro", folder)


def test_missing_files_and_names_are_said(write, tmp_path):
    with pytest.raises(DataError, match="screenspot_web.json"):
        benchmarks.read("screenspot", tmp_path)
    with pytest.raises(DataError, match="nowhere"):
        benchmarks.read("screenspot", tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="osworld_g_refined"):
        benchmarks.read("osworld", tmp_path)
    renamed = write("mine.json", [SCREENSPOT]) / "mine.json"
    with pytest.raises(DataError, match="told by the name"):
        benchmarks.read("screenspot", renamed)
    assert (
        len(benchmarks.read("screenspot", write("screenspot_web.json", [SCREENSPOT]) / "screenspot_web.json").items)
        == 1
    )


@pytest.mark.parametrize("name", sorted(benchmarks.READERS))
def test_every_reader_refuses_an_empty_folder(name, tmp_path):
    with pytest.raises(DataError):
        benchmarks.read(name, tmp_path)
