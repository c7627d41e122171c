"""WebArena's task file (`config_files/test.raw.json`), all tasks in one list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data.benchmarks.online_fields import Fields, read_json
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.online.task import Check, Evaluation, OnlineTask, Operation
from gui_owl_jax.evals.online.webarena import UNACHIEVABLE

URL_RULE = "GOLD in PRED"
_NULL = type(None)
_ALTERNATIVES, _TABS = " |OR| ", " |AND| "


def read_webarena(path: Path) -> tuple[OnlineTask, ...]:
    """Reads `test.raw.json`, or the folder that it lies in; addresses keep their placeholders ("__SHOPPING__").

    Raises:
      DataError: the file is malformed; names entry and field.
    """
    file = path / "test.raw.json" if path.is_dir() else path
    entries = read_json(file)
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{file} must hold a list of tasks")
    tasks = tuple(_task(f"{file}[{index}]", entry) for index, entry in enumerate(entries))
    names = [task.task_id for task in tasks]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{file}: field 'task_id': {twice} occurs twice")
    return tasks


def _task(where: str, entry: object) -> OnlineTask:
    fields = Fields(where, entry)
    intent, template = fields.text("intent"), fields.text("intent_template")
    checks = _checks(Fields(f"{where}: eval", fields.take("eval", dict)), intent)
    state = fields.take("storage_state", str, _NULL)
    start = [Operation("open_page", {"url": url}) for url in fields.text("start_url").split(_TABS)]
    details = {
        "require_login": fields.take("require_login", bool),
        "require_reset": fields.take("require_reset", bool),
        "geolocation": fields.take("geolocation", dict, _NULL),
        "intent_template_id": fields.take("intent_template_id", int),
        "instantiation_dict": fields.take("instantiation_dict", dict),
    }
    fields.take("string_note", str, default="-")  # one entry of the release repeats a field of "eval" here
    task = OnlineTask(
        task_id=str(fields.take("task_id", int)),
        source="webarena",
        instruction=intent,
        family=DeviceFamily.WEB,
        evaluation=Evaluation(checks),
        apps=fields.texts("sites"),
        setup=(*([Operation("load_storage_state", {"path": state})] if state else []), *start),
        infeasible=any(check.kind == "webarena.unachievable" for check in checks),
        template=template,
        details=details,
    )
    fields.close()
    return task


def _checks(fields: Fields, intent: str) -> tuple[Check, ...]:
    types = fields.texts("eval_types")
    answers = fields.take("reference_answers", dict, _NULL)
    url = fields.take("reference_url", str, _NULL, default="")
    pages = fields.take("program_html", list)
    note = fields.take("string_note", str, default="-")
    rule = fields.take("url_note", str, default=URL_RULE)
    for name in ("reference_answer_raw_annotation", "annotation_note"):  # remarks of the annotators
        fields.take(name, str, default="-")
    fields.close()
    checks: list[Check] = []
    for kind in types:
        if kind == "string_match":
            if not answers:
                raise DataError(f"{fields.where}: field 'reference_answers' is empty, string_match needs it")
            references = Fields(f"{fields.where}: reference_answers", answers)
            checks += _string_checks(references, intent, "" if note == "-" else note)
        elif kind == "url_match":
            if not url:
                raise DataError(f"{fields.where}: field 'reference_url' is empty, url_match needs it")
            if rule != URL_RULE:
                raise DataError(f"{fields.where}: field 'url_note' is {rule!r}, the only rule is {URL_RULE!r}")
            checks.append(_check("url_match", Operation("url"), url.split(_ALTERNATIVES)))
        elif kind == "program_html":
            checks.append(_page_check(f"{fields.where}: program_html", pages))
        else:
            raise DataError(f"{fields.where}: field 'eval_types' has the unknown type {kind!r}")
    if not checks:
        raise DataError(f"{fields.where}: field 'eval_types' is empty")
    return tuple(checks)


def _check(kind: str, result: Operation, rules: Any, **options: object) -> Check:
    return Check(f"webarena.{kind}", result, Operation("rule", {"rules": rules}), options)


def _string_checks(fields: Fields, intent: str, note: str) -> list[Check]:
    answer, checks = Operation("answer"), []
    if "exact_match" in fields:
        checks.append(_check("exact_match", answer, fields.text("exact_match")))
    if "must_include" in fields:
        checks.append(_check("must_include", answer, list(fields.texts("must_include"))))
    if "fuzzy_match" in fields:
        references = fields.take("fuzzy_match", str, list)
        if references == UNACHIEVABLE:
            checks.append(_check("unachievable", answer, references, intent=intent, note=note))
        elif isinstance(references, list) and references and all(isinstance(each, str) for each in references):
            checks.append(_check("fuzzy_match", answer, references, intent=intent))
        else:
            raise DataError(f"{fields.where}: field 'fuzzy_match' must be a list of strings or {UNACHIEVABLE!r}")
    fields.close()
    return checks


def _page_check(where: str, pages: list[object]) -> Check:
    """All targets of a task as one check: what is to be fetched from live pages, and what it must contain."""
    if not pages:
        raise DataError(f"{where} is empty, the type program_html needs it")
    targets, required = [], []
    for index, page in enumerate(pages):
        fields = Fields(f"{where}[{index}]", page)
        target: dict[str, object] = {"url": fields.text("url"), "locator": fields.take("locator", str)}
        if "prep_actions" in fields:
            target["prep_actions"] = list(fields.texts("prep_actions"))
        contents = Fields(f"{where}[{index}]: required_contents", fields.take("required_contents", dict))
        if "exact_match" in contents:
            required.append({"exact_match": contents.take("exact_match", str)})
        else:
            required.append({"must_include": list(contents.texts("must_include"))})
        contents.close()
        fields.close()
        targets.append(target)
    return _check("program_html", Operation("page_contents", {"targets": targets}), required)
