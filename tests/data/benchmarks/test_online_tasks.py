import collections
import json

import pytest

from data.benchmarks.online_tasks import ONLINE_READERS, read_online_tasks
from data.benchmarks.online_tasks_android import read_androidworld, step_budget, with_parameters
from data.benchmarks.online_tasks_osworld import read_osworld, read_osworld_ids
from data.benchmarks.online_tasks_webarena import read_webarena
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.evals.online.evaluators import coverage

FOLDERS = {"osworld": "osworld_tasks", "androidworld": "androidworld", "webarena": "webarena"}


@pytest.fixture(scope="module", params=ONLINE_READERS)
def benchmark_tasks(request, conformance):
    return request.param, read_online_tasks(request.param, conformance / FOLDERS[request.param])


def test_every_task_file_parses(benchmark_tasks):
    name, tasks = benchmark_tasks
    assert len(tasks) == {"osworld": 108, "androidworld": 116, "webarena": 812}[name]
    assert len({task.task_id for task in tasks}) == len(tasks) and {task.source for task in tasks} == {name}
    assert sum(task.infeasible for task in tasks) == {"osworld": 8, "androidworld": 0, "webarena": 36}[name]
    assert all(json.loads(task.evaluation.checks[0].result.key.partition(" ")[2]) is not None for task in tasks)


# Evaluators without an implementation here, as counted in the files by other means.
UNSUPPORTED = {
    "osworld": {
        "osworld.compare_table": 44,
        "osworld.compare_pdfs": 5,
        "osworld.check_accessibility_tree": 1,
        "osworld.check_highlighted_words": 1,
        "osworld.check_italic_font_size_14": 1,
        "osworld.check_pdf_pages": 1,
        "osworld.check_tabstops": 1,
        "osworld.compare_docx_images": 1,
        "osworld.compare_unique_train_records": 1,
        "osworld.evaluate_colored_words_in_tables": 1,
        "osworld.evaluate_strike_through_last_paragraph": 1,
        "osworld.has_page_numbers_in_footers": 1,
    },
    "androidworld": {"androidworld.is_successful": 116},
    "webarena": {"webarena.program_html": 411, "webarena.fuzzy_match": 82},
}


def test_unsupported_evaluators_are_listed_by_name_and_count(benchmark_tasks):
    name, tasks = benchmark_tasks
    found = coverage(tasks)
    assert dict(found.unsupported) == UNSUPPORTED[name] and list(found.unsupported)[0] == list(UNSUPPORTED[name])[0]
    assert (found.tasks, found.judged) == (len(tasks), {"osworld": 53, "androidworld": 0, "webarena": 319}[name])
    report = found.report()
    assert f"{found.judged} of {found.tasks} tasks" in report and report.count("unsupported") == len(UNSUPPORTED[name])


def test_evaluator_counts_are_those_of_the_files(benchmark_tasks, conformance):
    name, tasks = benchmark_tasks
    kinds = coverage(tasks).kinds
    if name == "webarena":
        expected = {"exact_match": 45, "must_include": 176, "fuzzy_match": 82, "unachievable": 36}
        expected |= {"url_match": 66 + 129 + 10, "program_html": 282 + 129}
        assert kinds == {f"webarena.{kind}": count for kind, count in expected.items()}
        assert coverage(tasks, judge=True).unsupported == {"webarena.program_html": 411}
    if name == "osworld":
        raw: collections.Counter = collections.Counter()
        for file in (conformance / "osworld_tasks").glob("*/*.json"):
            functions = json.loads(file.read_text())["evaluator"]["func"]
            raw.update(functions if isinstance(functions, list) else [functions])
        assert kinds == {f"osworld.{kind}": count for kind, count in raw.items()} and sum(kinds.values()) == 118


def test_osworld_tasks(conformance):
    tasks = {task.task_id: task for task in read_osworld(conformance / "osworld_tasks")}
    assert {task.family for task in tasks.values()} == {DeviceFamily.DESKTOP}
    counts = collections.Counter(task.tags[0] for task in tasks.values())
    assert counts == {"libreoffice_calc": 47, "os": 24, "libreoffice_writer": 23, "thunderbird": 14}
    assert {task.evaluation.gate for task in tasks.values() if task.infeasible} == {""}
    assert {task.evaluation.gate for task in tasks.values() if not task.infeasible} == {"not_failed"}
    assert sum(task.evaluation.join == "or" for task in tasks.values()) == 5
    several = [task for task in tasks.values() if len(task.evaluation.checks) > 1]
    assert several and tasks["c288e301-e626-4b98-a1ab-159dcb162af5"].setup == ()
    export = tasks["3aaa4e37-dc91-482e-99af-132a612d40f3"]
    (check,) = export.evaluation.checks
    assert (check.kind, check.result.kind, check.expected.kind) == ("osworld.compare_csv", "vm_file", "cloud_file")
    assert check.result.arguments["dest"] == "Export_Calc_to_CSV.csv" and export.setup[0].kind == "download"


def test_the_list_of_osworld_ids_covers_the_files(conformance):
    ids = read_osworld_ids(conformance / "osworld_tasks" / "test_all.json")
    assert sum(map(len, ids.values())) in (361, 369)
    tasks = read_osworld(conformance / "osworld_tasks" / "os")
    assert {task.task_id for task in tasks} <= set(ids["os"])


def test_androidworld_tasks(conformance):
    tasks = read_androidworld(conformance / "androidworld", complexity={"AudioRecorderRecordAudioWithFileName": 2.45})
    assert collections.Counter(task.difficulty for task in tasks) == {"easy": 61, "medium": 36, "hard": 19}
    assert {task.evaluation.gate for task in tasks} == {"declared"} and "" not in {t for k in tasks for t in k.tags}
    first, second = tasks[:2]
    assert first.max_steps is None and second.max_steps == 24 and second.details == {"optimal_steps": 10}
    assert '"{file_name}"' in second.instruction
    filled = with_parameters(second, {"file_name": "a{b}", "unused": 1})
    assert '"a{b}"' in filled.instruction and filled.template == second.template
    with pytest.raises(DataError, match="file_name"):
        with_parameters(second, {})


def test_step_budgets_are_cut_not_rounded():
    assert [step_budget(complexity) for complexity in (1, 1.2, 2.59, 6)] == [10, 12, 25, 60]


def test_webarena_tasks(conformance):
    tasks = read_webarena(conformance / "webarena")
    first = tasks[0]
    assert first.apps == ("shopping_admin",) and first.instruction == "What is the top-1 best-selling product in 2022"
    assert [step.kind for step in first.setup] == ["load_storage_state", "open_page"]
    assert first.evaluation.checks[0].expected.arguments == {"rules": "Quest Lumaflex\u2122 Band"}
    tabs = [task for task in tasks if sum(step.kind == "open_page" for step in task.setup) > 1]
    assert tabs and all(" |AND| " not in step.arguments.get("url", "") for task in tasks for step in task.setup)
    pages = [c for task in tasks for c in task.evaluation.checks if c.kind == "webarena.program_html"]
    assert sum(len(check.result.arguments["targets"]) for check in pages) == 651
    both = [task for task in tasks if len(task.evaluation.checks) == 2]
    assert len(both) == 129 + 10 + 4


OSWORLD = {
    "id": "a",
    "snapshot": "os",
    "instruction": "Do it.",
    "source": "",
    "config": [{"type": "sleep", "parameters": {"seconds": 1}}],
    "trajectory": "t/",
    "related_apps": ["os"],
    "evaluator": {
        "func": ["exact_match", "exact_match"],
        "result": [{"type": "vm_terminal_output"}, {"type": "vm_terminal_output"}],
        "expected": [{"type": "rule", "rules": {"expected": "x"}}] * 2,
        "conj": "or",
    },
    "proxy": False,
    "fixed_ip": False,
    "possibility_of_env_change": "low",
}
ANDROID = {"task_name": "A", "task_template": "Do it.", "difficulty": "easy", "tags": [], "optimal_steps": "3"}
WEB = {
    "sites": ["map"],
    "task_id": 7,
    "require_login": False,
    "storage_state": None,
    "start_url": "__MAP__",
    "geolocation": None,
    "intent_template": "Find {{x}}",
    "instantiation_dict": {"x": "y"},
    "intent": "Find y",
    "require_reset": False,
    "eval": {
        "eval_types": ["string_match", "url_match"],
        "reference_answers": {"exact_match": "y"},
        "reference_url": "__MAP__/y",
        "program_html": [],
        "url_note": "GOLD in PRED",
    },
    "intent_template_id": 3,
}
BAD = [
    ("osworld", "evaluator/func", [], "'func'"),
    ("osworld", "evaluator/func", ["exact_match"], "'result' has 2 entries for 1"),
    ("osworld", "evaluator/expected", {}, "'expected'"),
    ("osworld", "evaluator/conj", "xor", "'conj'"),
    ("osworld", "evaluator/options", [{}], "'options'"),
    ("osworld", "evaluator/mystery", 1, "'mystery'"),
    ("osworld", "config", [{"type": "sleep"}], "config[0]: field 'parameters'"),
    ("osworld", "config", [{"type": "sleep", "parameters": {}, "x": 1}], "'x'"),
    ("osworld", "instruction", " ", "'instruction'"),
    ("osworld", "related_apps", [1], "'related_apps'"),
    ("osworld", "proxy", "no", "'proxy'"),
    ("osworld", "id", "b", "'id'"),
    ("osworld", "extra", 1, "'extra'"),
    ("androidworld", "difficulty", "trivial", "'difficulty'"),
    ("androidworld", "optimal_steps", "many", "'optimal_steps'"),
    ("androidworld", "optimal_steps", 3, "'optimal_steps'"),
    ("androidworld", "task_name", None, "'task_name'"),
    ("androidworld", "extra", 1, "'extra'"),
    ("webarena", "task_id", "7", "'task_id'"),
    ("webarena", "task_id", True, "'task_id'"),
    ("webarena", "eval/eval_types", ["string_match", "mystery"], "'mystery'"),
    ("webarena", "eval/eval_types", [], "'eval_types'"),
    ("webarena", "eval/eval_types", ["program_html"], "program_html"),
    ("webarena", "eval/reference_answers", None, "'reference_answers'"),
    ("webarena", "eval/reference_answers", {"nearly": "y"}, "'nearly'"),
    ("webarena", "eval/reference_answers", {"fuzzy_match": "y"}, "'fuzzy_match'"),
    ("webarena", "eval/reference_url", "", "'reference_url'"),
    ("webarena", "eval/url_note", "PRED in GOLD", "'url_note'"),
    ("webarena", "start_url", "", "'start_url'"),
    ("webarena", "extra", 1, "'extra'"),
]


def write(folder, name, entry):
    if name == "osworld":
        (folder / "os").mkdir(exist_ok=True)
        (folder / "os" / "a.json").write_text(json.dumps(entry))
    else:
        file = {"androidworld": "task_metadata.json", "webarena": "test.raw.json"}[name]
        (folder / file).write_text(json.dumps([entry]))
    return folder


@pytest.mark.parametrize(("name", "entry"), [("osworld", OSWORLD), ("androidworld", ANDROID), ("webarena", WEB)])
def test_the_good_entries_are_good(name, entry, tmp_path):
    (task,) = read_online_tasks(name, write(tmp_path, name, entry))
    assert task.source == name
    for field in entry:  # every field is needed, but for these
        fewer = {key: value for key, value in entry.items() if key != field}
        if field == "config":
            assert read_online_tasks(name, write(tmp_path, name, fewer))[0].setup == ()
        else:
            with pytest.raises(DataError, match=repr(field)):
                read_online_tasks(name, write(tmp_path, name, fewer))


@pytest.mark.parametrize(
    ("name", "path", "value", "said"), BAD, ids=[f"{n}-{p}-{i}" for i, (n, p, *_) in enumerate(BAD)]
)
def test_malformed_fields_are_refused_by_name(name, path, value, said, tmp_path):
    entry = json.loads(json.dumps({"osworld": OSWORLD, "androidworld": ANDROID, "webarena": WEB}[name]))
    *parents, field = path.split("/")
    inner = entry
    for parent in parents:
        inner = inner[parent]
    inner[field] = value
    with pytest.raises(DataError) as caught:
        read_online_tasks(name, write(tmp_path, name, entry))
    assert said in str(caught.value) and ".json" in str(caught.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(ConfigError, match="osworld, androidworld, webarena"):
        read_online_tasks("miniwob", tmp_path)
    with pytest.raises(DataError, match="not there"):
        read_online_tasks("osworld", tmp_path / "nowhere")
    for name in ONLINE_READERS:
        with pytest.raises(DataError, match=str(tmp_path)):
            read_online_tasks(name, tmp_path)
    for name, file in (("androidworld", "task_metadata.json"), ("webarena", "test.raw.json")):
        for text in ("{", "{}", "[]", "[3]"):
            (tmp_path / file).write_text(text)
            with pytest.raises(DataError, match=file):
                read_online_tasks(name, tmp_path)
        twice = [ANDROID, ANDROID] if name == "androidworld" else [WEB, WEB]
        (tmp_path / file).write_text(json.dumps(twice))
        with pytest.raises(DataError, match="twice"):
            read_online_tasks(name, tmp_path)
