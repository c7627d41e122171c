"""Each main from end to end, and what it says to bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from data.store import TrajectorySource
from gui_owl_jax.evals.success import average_success, read_stage
from gui_owl_jax.hf.checkpoint import import_hf
from gui_owl_jax.hf.processor import Processor
from tests.launch.conftest import TINY, Main

# An untrained nano model in the virtual world, in few shapes.
NANO = (
    "--config=configs/nano.py",
    "--config.env.slots=6",
    "--config.sampler.max_new_tokens=8",
    "--config.sampler.row_buckets=(8,)",
    "--config.sampler.length_buckets=(128,)",
    "--config.sampler.patch_buckets=(64,)",
)


@pytest.fixture(scope="module")
def coin(coin_folder) -> str:
    return f"--config={TINY}:supervised,{coin_folder}"


@pytest.fixture(scope="module")
def exported(coin, coin_folder):
    folder = coin_folder / "export"
    said = Main("export_hf", f"--policy={coin_folder / 'sft'}", f"--out={folder}").succeed()
    assert f'from_pretrained("{folder}")' in said
    return folder


def test_rollouts_are_stored(coin, coin_folder, tmp_path):
    flags = (f"--policy={coin_folder / 'sft'}", f"--out={tmp_path / 'r'}", "--tasks_per_family=6", "--repeats=2")
    said = Main("rollout", coin, *flags).succeed()
    trajectories = TrajectorySource(tmp_path / "r")
    assert len(trajectories) == 12 and "12 trajectories" in said
    assert [t.task_id for t in trajectories][:3:2] == ["press/train/0", "press/train/1"]
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    assert {t.outcome for t in trajectories} == {0, 1}  # it knows the format, and guesses the button
    assert all(step.token_ids is not None and len(step.token_ids) == len(step.logps) for step in steps)


def test_an_exported_policy_is_the_same_policy(coin, coin_folder, exported, tmp_path):
    """Greedy rollouts of the run folder and of the exported folder agree."""
    found = []
    for policy in (coin_folder / "sft", exported):
        flags = (f"--policy={policy}", f"--out={tmp_path / policy.name}", "--tasks_per_family=4")
        Main("rollout", coin, *flags, "--config.sampler.temperature=0.0").succeed()
        found.append([[step.response for step in t.steps] for t in TrajectorySource(tmp_path / policy.name)])
    assert found[0] == found[1] and found[0][0][0].startswith("Action: Press ")
    config, params = import_hf(exported)
    assert params["text"]["embed"]["embedding"].shape == (config.text.vocab_size, config.text.width)
    assert Processor.load(exported).tokenizer.image_pad == config.image_token_id


def act(policy, image, *flags) -> tuple[int, str, str]:
    return Main("act", f"--policy={policy}", f"--image={image}", "--instruction=Press the right button.", *flags).end()


def test_act_prints_one_action(coin, exported, tmp_path):
    Image.fromarray(np.full((32, 32, 3), 77, np.uint8)).save(tmp_path / "screen.png")
    code, out, err = act(exported, tmp_path / "screen.png", coin)
    assert code == 0, err
    answer = json.loads(out)
    assert answer["action"]["kind"] == "system_button" and answer["action"]["button"] in ("Back", "Enter")
    assert answer["conclusion"] == f"Press {answer['action']['button']}."


def test_act_says_why_an_answer_is_no_action(tmp_path):
    Image.fromarray(np.zeros((64, 32, 3), np.uint8)).save(tmp_path / "screen.png")
    code, out, err = act("random", tmp_path / "screen.png", *NANO)
    assert (code, out) == (1, "")
    assert complaint(err).startswith("ParseError: no_tool_call")


def test_evaluation_is_what_the_report_reads(tmp_path):
    sizes = ("--config.evaluation.tasks_per_family=2", "--config.evaluation.grounding_screens=7")
    flags = ("--policy=random", "--stage=random", f"--out={tmp_path / 'evaluate'}", "--config.evaluation.controls=True")
    Main("evaluate", *NANO, *sizes, *flags).succeed()
    result = read_stage(tmp_path / "evaluate" / "random.json")
    assert (result.stage, result.policy) == ("random", "random") and result.parameters > 500_000
    assert [str(row.family) for row in result.tasks] == ["mobile"] * 2 + ["desktop"] * 2 + ["web"] * 2
    assert [row.task_id for row in result.scrambled] == [row.task_id for row in result.tasks]
    assert average_success(result.tasks).successes == 0  # no word of the format is known
    assert all(row.parse_errors == row.steps > 0 for row in result.tasks)
    assert result.grounding.trials == 9 and result.grounding.hits == 0
    assert {name: trials for name, (_, trials) in result.grounding.families.items()} == dict.fromkeys(
        ("mobile", "desktop", "web"), 3
    )
    trajectories = TrajectorySource(tmp_path / "evaluate" / "random")
    assert [t.task_id for t in trajectories] == [row.task_id for row in result.tasks]
    assert trajectories[4].metadata["marks"][0]
    assert "random" in Main("report", f"--run={tmp_path}").succeed()


def complaint(err: str) -> str:
    """The one line on stderr that is neither a log line nor a progress bar."""
    lines = [line for line in err.splitlines() if line.strip() and not line.startswith(("I", "[Gloo]"))]
    assert len(lines) == 1, err
    return lines[0]


TRAIN = ("train", "--config=configs/nano.py", "--workdir={tmp}/w")
ACT = ("act", *NANO, "--policy=random", "--instruction=x")
# What is wrong -> (what the line must name, the main, its flags).
BAD = {
    "unknown field": ("no field nofield", *TRAIN, "--config.nofield=1"),
    "bad value": ("config.steps", *TRAIN, "--config.steps=many"),
    "no config": ("configs/none.py", "train", "--config=configs/none.py", "--workdir={tmp}/w"),
    "no flag": ("--workdir", *TRAIN[:2]),
    "unknown stage": ("config.stage", *TRAIN, "--config.stage=sideways"),
    "no data": ("{tmp}/d", *TRAIN, "--config.data.path={tmp}/d"),
    "mesh": ("mesh", *TRAIN, "--config.mesh.data=3"),
    "not wired": ("selection.strategy", *TRAIN, "--config.stage=mrpo", "--config.selection.strategy=success_replay"),
    "unknown world": ("env.world", "rollout", *NANO, "--policy=random", "--out={tmp}/r", "--config.env.world=envs.x"),
    "no policy": ("{tmp}/p", "export_hf", "--policy={tmp}/p", "--out={tmp}/o"),
    "no image": ("{tmp}/i.png", *ACT, "--image={tmp}/i.png"),
    "not an image": ("{tmp}/text.png", *ACT, "--image={tmp}/text.png"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_one_line(case, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    named, module, *flags = [word.format(tmp=tmp_path) for word in BAD[case]]
    code, out, err = Main(module, *flags).end()
    assert (code, out) == (1, "")
    assert named in complaint(err)
    assert not (tmp_path / "w" / "run.json").exists() and not (tmp_path / "o").exists()
