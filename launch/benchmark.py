"""`launch.evaluate` on a published benchmark: asks every item, keeps the raw answers, scores them, writes a report.

  python -m launch.evaluate --benchmark=screenspot_pro --data=ANNOTATIONS --images=IMAGES --policy=CHECKPOINT \
      --dialect=gui_owl_1_5 --rule=exact --out=runs/screenspot_pro

--endpoint=URL --model=NAME asks a served model instead of --policy. A killed evaluation goes on when it is started
again with the same flags. --score_only scores the stored answers again, under another rule say; --answers=FILE scores
other ones, with --answers_format=mai_ui such as MAI-UI publishes.

Writes to <out>: answers.jsonl (of several processes answers-<process>.jsonl too), result.json and report.html.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
from absl import flags, logging
from ml_collections import ConfigDict

from configs import benchmark as default_config
from data import benchmarks
from data.benchmarks import published_answers
from gui_owl_jax.agent import dialects
from gui_owl_jax.agent.dialects import Dialect
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.evals import action_score, grounding_score, knowledge, runner
from gui_owl_jax.evals.action_rules import ActionRule
from gui_owl_jax.evals.answerers import EngineAnswerer
from gui_owl_jax.evals.answers import AnswerStore, answer_from_json, answer_to_json, write_answers
from gui_owl_jax.evals.benchmark import ActionLabel, Answer, Answerer, Benchmark, Choice
from gui_owl_jax.evals.benchmark_report import BenchmarkReport, write_report
from gui_owl_jax.evals.endpoint import Endpoint, EndpointConfig
from gui_owl_jax.evals.grounding_rules import GroundingRule
from gui_owl_jax.evals.knowledge import KnowledgeRule
from gui_owl_jax.evals.score import Score, count_reasons, score_to_json
from gui_owl_jax.evals.zoom import ZoomConfig
from gui_owl_jax.hf.images import ImageConfig
from gui_owl_jax.models.config import get_preset
from gui_owl_jax.rollout.engine import SamplerConfig
from gui_owl_jax.training.checkpoints import Checkpoints
from launch import common

BENCHMARK = flags.DEFINE_string("benchmark", "", f"A published benchmark: {', '.join(benchmarks.READERS)}.")
DATA = flags.DEFINE_string("data", "", "Its annotations: a folder, or the one file.")
IMAGES = flags.DEFINE_string("images", "", "The folder of its screenshots; default: --data.")
ENDPOINT = flags.DEFINE_string("endpoint", "", "Base URL of a server that speaks OpenAI's chat completions.")
MODEL = flags.DEFINE_string("model", "", "The name of the model at the endpoint.")
DIALECT = flags.DEFINE_string("dialect", "gui_owl_1_5", f"How answers are written: {', '.join(dialects.DIALECTS)}.")
SCALE = flags.DEFINE_string("scale", "", 'Another grid of the dialect\'s points: 1000, 999 or "resized".')
RULE = flags.DEFINE_string("rule", "", "How answers are scored: a name, settings, or a name with settings behind it.")
ZOOM = flags.DEFINE_string("zoom", "", 'A second look: "ratio=0.5", "size=1024x1024", with ",enlarged=1920x1080".')
SCORE_ONLY = flags.DEFINE_bool("score_only", False, "Score the answers in --out, without a model.")
ANSWERS = flags.DEFINE_string("answers", "", "Score the answers of this file instead.")
ANSWERS_FORMAT = flags.DEFINE_string("answers_format", "own", f"Of --answers: {', '.join(published_answers.FORMATS)}.")
RETRY_FAILED = flags.DEFINE_bool("retry_failed", False, "Ask the items again that could not be asked.")

_BATCH = 32  # items that are asked together, where the config does not say


def run(config: ConfigDict | None, policy: str, out: pathlib.Path) -> None:
    """Evaluates on the benchmark of the flags.

    Args:
      config: the experiment; None: configs/benchmark.py.
      policy: a run folder, a Hugging Face folder or "random"; "" with an endpoint, or where answers are only scored.
      out: the folder of the results.

    Raises:
      GuiOwlError: flags, files or the endpoint cannot be used.
    """
    config = config or default_config.get_config()
    benchmark = benchmarks.read(BENCHMARK.value, DATA.value)
    if not benchmark.items:
        raise DataError(
            f"{DATA.value}: no item of {BENCHMARK.value} could be read ({len(benchmark.problems)} problems)"
        )
    dialect = dialects.get(DIALECT.value)
    if SCALE.value:
        dialect = dialects.with_scale(dialect, SCALE.value if SCALE.value == dialects.RESIZED else _number(SCALE.value))
    scorer = _scorer(benchmark, dialect)
    images = pathlib.Path(IMAGES.value or DATA.value)
    if SCORE_ONLY.value or ANSWERS.value:
        stored = pathlib.Path(ANSWERS.value or out / "answers.jsonl")
        answers = published_answers.read(ANSWERS_FORMAT.value, stored, benchmark)
        settings: dict[str, Any] = {"answers": str(stored), "format": ANSWERS_FORMAT.value}
    else:
        settings, answers = _asked(config, policy, benchmark, images, dialect, out)
    if jax.process_index() == 0:
        _report(benchmark, answers, scorer(answers), settings, images, out)


def _asked(
    config: ConfigDict,
    policy: str,
    benchmark: Benchmark,
    images: pathlib.Path,
    dialect: Dialect,
    out: pathlib.Path,
) -> tuple[dict[str, Any], list[Answer]]:
    """(what the answers depend on, the answers of all processes in the order of the benchmark)."""
    if bool(policy) == bool(ENDPOINT.value):
        raise ConfigError("state one of --policy and --endpoint (with --model), or --score_only")
    common.setup_devices(config)
    asking = runner.Asking(
        dialect,
        parse_zoom(ZOOM.value),
        config.context.style,
        config.get("benchmark", {}).get("batch", _BATCH),
        config.evaluation.seed,
    )
    settings = {
        "benchmark": benchmark.name,
        "questions": runner.fingerprint(benchmark.items, asking),
        "dialect": f"{dialect.name}, scale {dialect.scale}",
        "zoom": dataclasses.asdict(asking.zoom) if asking.zoom else None,
        "seed": asking.seed,
        "commit": common.git_commit(),
    }
    if policy:
        answerer, join, about = _engine(config, policy)
    else:
        answerer, join, about = _endpoint(config)
    settings |= about
    several = jax.process_count() > 1
    own = out / (f"answers-{jax.process_index()}.jsonl" if several else "answers.jsonl")
    others = [path for path in sorted(out.glob("answers*.jsonl")) if path != own]
    items = common.per_host(list(benchmark.items))
    progress = benchmark.name if jax.process_index() == 0 else ""
    with AnswerStore(own, settings, others=others, retry_failed=RETRY_FAILED.value) as store:
        runner.run(items, images, answerer, asking, store, progress=progress)
        join()
        share = [answer_to_json(store.answers[item.item_id]) for item in items]
    found = {a["item_id"]: answer_from_json(a, "answers") for part in common.gather_hosts(share) for a in part}
    answers = [found[item.item_id] for item in benchmark.items]
    if jax.process_index() == 0:
        write_answers(out / "answers.jsonl", settings, answers)
    return settings, answers


_Policy = tuple[Answerer, Callable[[], None], dict[str, Any]]  # policy, what to do at the end, what answers depend on


def _engine(config: ConfigDict, policy: str) -> _Policy:
    sampler = common.build(SamplerConfig, config.sampler, "sampler")
    actor, mesh = common.load_actor(config, policy)
    engine = common.make_engine(actor, sampler, config, mesh)
    image = actor.processor.image_config
    sampling = {name: getattr(sampler, name) for name in ("max_new_tokens", "temperature", "top_k", "top_p")}
    about = {
        "policy": policy,
        "step": _latest_step(policy),
        "sampler": {**sampling, "dtype": config.compute.dtype},
        "image": dataclasses.asdict(image),
    }
    return EngineAnswerer(engine, actor.params, actor.processor), lambda: engine.join(actor.params), about


def _endpoint(config: ConfigDict) -> _Policy:
    bounds = {name: config.image[name] or None for name in ("min_pixels", "max_pixels")}
    image = ImageConfig.for_model(get_preset(config.model.preset), **bounds)
    sampling = {"max_tokens": config.sampler.max_new_tokens, "temperature": config.sampler.temperature}
    fixed = {"url": ENDPOINT.value, "model": MODEL.value, "image": image, **sampling}
    client = common.build(EndpointConfig, {**config.get("endpoint", {}), **fixed}, "endpoint")
    about = {
        "endpoint": client.url,
        "model": client.model,
        "sampler": {**sampling, "top_p": client.top_p},
        "image": dataclasses.asdict(image),
    }
    return Endpoint(client), lambda: None, about


def _latest_step(policy: str) -> int | None:
    folder = pathlib.Path(policy)
    if not (folder / "run.json").exists():
        return None
    with Checkpoints(folder / "checkpoints") as checkpoints:
        return checkpoints.latest_step


def _scorer(benchmark: Benchmark, dialect: Dialect) -> Callable[[list[Answer]], Score]:
    """How the answers of a benchmark are scored, by the targets of its items and the rule of the flags."""
    kinds = {type(item.target) for item in benchmark.items}
    name = RULE.value
    if kinds == {Choice}:
        choice = KnowledgeRule.parse(name) if name else KnowledgeRule()
        return lambda answers: knowledge.score(benchmark, answers, choice)
    if kinds == {ActionLabel}:
        action = ActionRule.parse(name) if name else ActionRule()
        return lambda answers: action_score.score(benchmark, answers, action, dialect)
    grounding = GroundingRule.parse(name) if name else GroundingRule()
    return lambda answers: grounding_score.score(benchmark, answers, grounding, dialect)


def _report(
    benchmark: Benchmark,
    answers: list[Answer],
    score: Score,
    settings: dict[str, Any],
    images: pathlib.Path,
    out: pathlib.Path,
) -> None:
    failures = collections.Counter(answer.failure for answer in answers if answer.failure)
    result = {
        "settings": settings,
        **score_to_json(score),
        "calls": sum(len(answer.looks) for answer in answers),
        "failures": dict(sorted(failures.items())),
        "problems": dict(sorted(collections.Counter(problem.kind for problem in benchmark.problems).items())),
    }
    common.write_json(out / "result.json", result)
    opened = functools.partial(runner.open_image, images)
    write_report(out / "report.html", BenchmarkReport(benchmark, answers, score, settings, opened))
    for name, rate in score.averages.items():
        logging.info("%s: %s %.2f %% (%d of %d)", benchmark.name, name, 100 * rate.mean, rate.successes, rate.trials)
    logging.info("rule %s; %s; %s", score.rule, count_reasons(score.verdicts), out / "report.html")


def parse_zoom(text: str) -> ZoomConfig | None:
    """Reads "ratio=0.25,enlarged=1920x1080" or "size=1024x1024"; "" is None.

    Raises:
      ConfigError: an unknown setting or a malformed value.
    """
    if not text:
        return None
    settings: dict[str, Any] = {"ratio": None}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name == "ratio":
            settings[name] = _number(value)
        elif name in ("size", "enlarged"):
            settings[name] = _size(value)
        else:
            raise ConfigError(f"zoom: {part!r} must set ratio, size or enlarged")
    return ZoomConfig(**settings)


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise ConfigError(f"{text!r} must be a width and a height in pixels, 1920x1080 say")
    return int(width), int(height)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{text!r} must be a number") from None
