"""Reader of GUI Knowledge Bench: one JSON file a question below `KnowledgeBench/`, images below `Image/`.

A question is multiple choice (A, B, ... in the order of its options, which are texts or images) or asks for yes, no or
unknown. The fields are those that the evaluation of GUI-Owl-1.5 reads (`grounding_and_kb/
eval_gui_knowledge_benchmark.py`).
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator

from data.benchmarks.action_labels import collect
from data.benchmarks.entries import Entry, EntryError
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.benchmark import Benchmark, Choice, Item

FOLDERS = ("KnowledgeBench", "Knowledge_Bench")  # the release's code and its description differ
LETTERS = "ABCDEFGH"
YES_NO = ("yes", "no", "unknown")
CHOICE, VERDICT = "multiple_choice", "yes_or_no"
_FAMILIES = {"android": DeviceFamily.MOBILE, "ios": DeviceFamily.MOBILE, "iphone": DeviceFamily.MOBILE}


def read_gui_knowledge_bench(place: pathlib.Path) -> Benchmark:
    """Reads the questions below a folder, in the order of their paths.

    Args:
      place: the benchmark's folder, or the folder of the questions.

    Returns:
      A `Benchmark` of `Choice`s with the facets "category" (kind of knowledge), "subcategory", "platform" and
      "application". The images of the question come first (several are screens in sequence), then those of options that
      are images; the text of such an option says which it is.

    Raises:
      DataError: there is no question.
    """
    root = next((place / name for name in FOLDERS if (place / name).is_dir()), place)
    paths = sorted(root.rglob("*.json")) if root.is_dir() else [root]
    if not paths:
        raise DataError(f"{place}: no question; {FOLDERS[0]}/**/*.json should be there")
    return collect("gui_knowledge_bench", _questions(paths, root))


def _questions(paths: list[pathlib.Path], root: pathlib.Path) -> Iterator[tuple[str, Callable[[], Item]]]:
    for path in paths:

        def make(path: pathlib.Path = path) -> Item:
            return _item(path)

        yield str(path.relative_to(root)) if path != root else path.name, make


def _item(path: pathlib.Path) -> Item:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise EntryError("bad_entry", f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise EntryError("bad_entry", f"holds {type(fields).__name__}, must hold an object")
    entry = Entry(path, 0, fields)
    knowledge = fields.get("knowledge")
    if not isinstance(knowledge, dict):
        raise EntryError("missing_field", "knowledge is missing")
    category = Entry(path, 0, knowledge).facets(category="knowledge_type", subcategory="knowledge_sub_type")
    item_id = entry.text("question_id")
    question = entry.text("augmented_question" if fields.get("augmented_question") else "question_text")
    options, texts, pictures = _options(entry)
    images = _names(entry, "question_image_dir_list")
    if pictures:
        said = texts or [""] * len(options)
        texts = [f"{text} (image {len(images) + i})".strip() for i, text in enumerate(said, 1)]
    images = [*images, *pictures]
    platform = entry.facets(platform="os_type", application="app_type")
    return Item(
        item_id=item_id,
        instruction="\n".join([question, *(f"{name}. {text}" for name, text in zip(options, texts))]),
        target=Choice(_answer(entry, options), options),
        family=_FAMILIES.get(platform.get("platform", "").lower(), DeviceFamily.DESKTOP),
        image=images[0] if images else "",
        more_images=tuple(images[1:]),
        facets={**category, **platform},
    )


def _options(entry: Entry) -> tuple[tuple[str, ...], list[str], list[str]]:
    """(names of the options, their texts, their images)."""
    kind = entry.fields.get("question_type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == VERDICT:
        return YES_NO, [], []
    if kind != CHOICE:
        raise EntryError("bad_field", f"question_type is {kind!r:.80}, must be {CHOICE} or {VERDICT}")
    texts, pictures = _names(entry, "option_text"), _names(entry, "option_image_dir_list")
    if texts and pictures and len(texts) != len(pictures):
        raise EntryError("bad_field", f"the question has {len(texts)} texts and {len(pictures)} images of options")
    count = len(texts) or len(pictures)
    if not 2 <= count <= len(LETTERS):
        raise EntryError("bad_field", f"the question has {count} options, must have 2 to {len(LETTERS)}")
    return tuple(LETTERS[:count]), texts, pictures


def _answer(entry: Entry, options: tuple[str, ...]) -> str:
    truth = entry.text("groundtruth").strip()
    for option in options:
        if truth.lower() == option.lower():
            return option
    raise EntryError("bad_field", f"groundtruth is {truth!r:.80}, must be one of {', '.join(options)}")


def _names(entry: Entry, name: str) -> list[str]:
    value = entry.fields.get(name)
    if value is None:
        return []
    return [value] if isinstance(value, str) else entry.texts(name)
