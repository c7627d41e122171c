"""Readers of ScreenSpot (arXiv 2401.10935), ScreenSpot-v2 (arXiv 2410.23218) and ScreenSpot-Pro (arXiv 2504.07981).

ScreenSpot and v2 have one file a platform and boxes as xywh; ScreenSpot-Pro has one file an application and xyxy.
MAI-UI converted v2 to the form of ScreenSpot-Pro: xyxy, with a declared size; its group, platform and application say
nothing.
"""

from __future__ import annotations

import pathlib

from data.benchmarks.entries import BoxForm, Entry, annotation_files, read_benchmark
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.benchmark import Benchmark, Item

# Pages are pointed at by coordinates, which the actions of `DeviceFamily.WEB` (marks) do not have.
_FAMILIES = {"desktop": DeviceFamily.DESKTOP, "mobile": DeviceFamily.MOBILE, "web": DeviceFamily.DESKTOP}


def read_screenspot(place: pathlib.Path) -> Benchmark:
    """Reads ScreenSpot: `screenspot_{desktop,mobile,web}.json`. An id is the file's stem and the position in it.

    Raises:
      DataError: no file is there, or one is not JSON.
    """
    return read_benchmark("screenspot", _files(place, ""), lambda entry: _original(entry, ""))


def read_screenspot_v2(place: pathlib.Path) -> Benchmark:
    """Reads ScreenSpot-v2 as published: `screenspot_{desktop,mobile,web}_v2.json`; ids as for ScreenSpot.

    Raises:
      DataError: no file is there, or one is not JSON.
    """
    return read_benchmark("screenspot_v2", _files(place, "_v2"), lambda entry: _original(entry, "_v2"))


def read_screenspot_v2_mai_ui(place: pathlib.Path) -> Benchmark:
    """Reads ScreenSpot-v2 in MAI-UI's conversion: `screenspot_{desktop,mobile,web}_v2_convert.json`.

    Raises:
      DataError: no file is there, or one is not JSON.
    """
    return read_benchmark("screenspot_v2", _files(place, "_v2_convert"), _converted)


def read_screenspot_pro(place: pathlib.Path) -> Benchmark:
    """Reads ScreenSpot-Pro: one `<application>_<platform>.json` an application.

    Raises:
      DataError: no file is there, or one is not JSON.
    """
    return read_benchmark("screenspot_pro", annotation_files(place, ["*.json"]), _pro)


def _original(entry: Entry, version: str) -> Item:
    platform = _platform(entry.path, version)
    return Item(
        item_id=f"{entry.path.stem}_{entry.index}",
        instruction=entry.text("instruction"),
        target=entry.box("bbox", BoxForm.XYWH),
        family=_FAMILIES[platform],
        image=entry.text("img_filename"),
        facets={"platform": platform, **entry.facets(ui_type="data_type", application="data_source")},
    )


def _converted(entry: Entry) -> Item:
    platform = _platform(entry.path, "_v2_convert")
    return Item(
        item_id=entry.text("id"),
        instruction=entry.text("instruction"),
        target=entry.box("bbox", BoxForm.XYXY),
        family=_FAMILIES[platform],
        image=entry.text("img_filename"),
        size=entry.size("img_size"),
        facets={"platform": platform, **entry.facets(ui_type="ui_type")},
    )


def _pro(entry: Entry) -> Item:
    return Item(
        item_id=entry.text("id"),
        instruction=entry.text("instruction"),
        target=entry.box("bbox", BoxForm.XYXY),
        family=DeviceFamily.DESKTOP,
        image=entry.text("img_filename"),
        size=entry.size("img_size"),
        facets=entry.facets(group="group", ui_type="ui_type", platform="platform", application="application"),
    )


def _files(place: pathlib.Path, version: str) -> list[pathlib.Path]:
    return annotation_files(place, [f"screenspot_{platform}{version}.json" for platform in _FAMILIES])


def _platform(path: pathlib.Path, version: str) -> str:
    for platform in _FAMILIES:
        if path.name == f"screenspot_{platform}{version}.json":
            return platform
    raise DataError(f"{path}: the platform is told by the name: screenspot_{{{','.join(_FAMILIES)}}}{version}.json")
