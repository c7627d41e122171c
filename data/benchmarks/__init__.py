"""Readers of published benchmarks, by name: from the folder (or the one file) of annotations to a `Benchmark`."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping

from data.benchmarks import (
    aitw,
    android_control,
    android_control_records,
    knowledge,
    mmbench_gui,
    osworld_g,
    screenspot,
    ui_vision,
)
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.evals.benchmark import Benchmark

READERS: Mapping[str, Callable[[pathlib.Path], Benchmark]] = {
    "screenspot": screenspot.read_screenspot,
    "screenspot_v2": screenspot.read_screenspot_v2,
    "screenspot_v2_mai_ui": screenspot.read_screenspot_v2_mai_ui,
    "screenspot_pro": screenspot.read_screenspot_pro,
    "osworld_g": osworld_g.read_osworld_g,
    "osworld_g_refined": osworld_g.read_osworld_g_refined,
    "osworld_g_mai_ui": osworld_g.read_osworld_g_mai_ui,
    "osworld_g_refined_mai_ui": osworld_g.read_osworld_g_refined_mai_ui,
    "mmbench_gui_l2": mmbench_gui.read_mmbench_gui_l2,
    "ui_vision": ui_vision.read_ui_vision,
    "android_control_high": android_control_records.read_high,
    "android_control_low": android_control_records.read_low,
    "android_control_high_ui_s1": android_control.read_ui_s1_high,
    "android_control_low_ui_s1": android_control.read_ui_s1_low,
    "android_control_low_ui_r1": android_control.read_ui_r1,
    "aitw": aitw.read_aitw,
    "gui_knowledge_bench": knowledge.read_gui_knowledge_bench,
}


def read(name: str, folder: str | pathlib.Path) -> Benchmark:
    """Reads a benchmark in one of its published formats.

    Args:
      name: a key of `READERS`; it names the format too, nothing is told from the data.
      folder: where its annotation files lie, or one such file.

    Returns:
      The `Benchmark`: its items, and a problem for each entry that is none and each label that looks wrong.

    Raises:
      ConfigError: the name is unknown.
      DataError: the place does not exist, files are missing, or one is not what the format says.
    """
    if name not in READERS:
        raise ConfigError(f"benchmark {name!r} is none of {', '.join(READERS)}")
    place = pathlib.Path(folder)
    if not place.exists():
        raise DataError(f"{place} is not there; it must hold the annotations of {name}")
    return READERS[name](place)
