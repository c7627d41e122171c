"""What one step becomes: tokens, loss mask, images, and transported ids."""

import dataclasses
import pickle

import numpy as np
import pytest

from data.examples import CachedExamples, StepExamples, rl_example, step_example
from gui_owl_jax.agent.context import ContextConfig, build_messages
from gui_owl_jax.agent.errors import DataError, TransportError
from gui_owl_jax.agent.parsing import parse_response
from gui_owl_jax.agent.prompts import render_chat
from gui_owl_jax.hf.images import image_patches
from gui_owl_jax.models.layout import lay_out_rows


def longest(trajectories):
    return max(trajectories, key=lambda trajectory: len(trajectory.steps))


@pytest.mark.parametrize("history_n", [0, 1, 4])
@pytest.mark.parametrize("style", ["compact", "full"])
def test_step_example_is_the_chat_as_the_template_renders_it(trajectories, processor, history_n, style):
    trajectory = longest(trajectories)
    index = len(trajectory.steps) - 1
    assert index == 2
    context = ContextConfig(history_n=history_n, style=style)
    example = step_example(trajectory, index, processor, context)
    messages = build_messages(trajectory.instruction, trajectory.family, trajectory.steps[:index], context)
    target = example.loss_mask > 0
    prompt, response = example.tokens[~target], example.tokens[target]
    assert (np.flatnonzero(target) == np.arange(len(prompt), len(example.tokens))).all()
    assert response[-1] == processor.tokenizer.im_end
    text = processor.decode_response(response)
    parsed = parse_response(text, trajectory.family)
    assert parsed.action == trajectory.steps[index].action
    assert parsed.conclusion == trajectory.steps[index].conclusion
    shown = list(range(max(0, index - history_n), index + 1))
    assert len(example.images) == len(shown)
    for image, i in zip(example.images, shown):
        expected = image_patches(trajectory.steps[i].observation.image, processor.image_config)
        assert (image.patches == expected.patches).all()
    pads = prompt == processor.tokenizer.image_pad
    assert pads.sum() == sum(len(image.patches) for image in example.images) // 4
    once = prompt[~(pads & np.roll(pads, 1))]  # one pad per image, as in the text
    assert processor.tokenizer.decode(once) == render_chat(messages)


def test_a_response_that_was_said_is_imitated_as_it_was(trajectories, processor, context):
    trajectory = trajectories[0]
    said = "Action: Tap   it.\n<tool_call>\n{}\n</tool_call>"
    step = dataclasses.replace(trajectory.steps[0], response=said)
    trajectory = dataclasses.replace(trajectory, steps=(step,))
    example = step_example(trajectory, 0, processor, context)
    assert processor.decode_response(example.tokens[example.loss_mask > 0]) == said


def test_steps_without_anything_to_imitate(trajectories, processor, context):
    step = trajectories[0].steps[0]
    silent = dataclasses.replace(step, action=None)
    wrong = dataclasses.replace(step, action=None, response="{", error="bad_json")
    trajectory = dataclasses.replace(trajectories[0], steps=(step, silent, step, wrong))
    with pytest.raises(DataError, match="step 1 of trajectory open:0"):
        step_example(trajectory, 1, processor, context)
    with pytest.raises(DataError, match="bad_json"):
        step_example(trajectory, 3, processor, context)
    with pytest.raises(DataError):  # its history cannot be shown either
        step_example(trajectory, 2, processor, context)
    short = dataclasses.replace(trajectory, steps=(step, wrong, step))
    failed = dataclasses.replace(trajectory, outcome=0)
    examples = StepExamples([short, failed], processor, context)
    assert len(examples) == 2
    assert len(examples[1].images) == 2
    assert len(StepExamples([short, failed], processor, context, keep=lambda _: True)) == 4


def with_ids(trajectory, processor, context, index):
    """The trajectory with one step as the sampler would have left it, a stray image pad among the sampled ids."""
    steps = trajectory.steps
    messages = build_messages(trajectory.instruction, trajectory.family, steps[:index], context)
    prompt = processor.encode_prompt(messages, {i: step.observation.image for i, step in enumerate(steps)})
    pad = processor.tokenizer.image_pad
    ids = np.array([5, pad, pad, 9, processor.tokenizer.im_end], np.int32)
    shown = tuple(range(max(0, index - context.history_n), index + 1))
    step = dataclasses.replace(
        steps[index],
        token_ids=ids,
        logps=np.linspace(-1, -2, 5, dtype=np.float32),
        sampler_logps=np.linspace(-3, -4, 5, dtype=np.float32),
        prompt_ids=prompt.ids,
        image_steps=shown,
    )
    return dataclasses.replace(trajectory, steps=(*steps[:index], step, *steps[index + 1 :]))


def test_rl_example_is_made_of_transported_ids(trajectories, processor, context, config):
    trajectory = with_ids(longest(trajectories), processor, context, 2)
    step = trajectory.steps[2]
    example = rl_example(trajectory, 2, processor, advantage=-0.5, weight=0.25)
    length = len(step.prompt_ids)
    assert (example.tokens == np.concatenate([step.prompt_ids, step.token_ids])).all()
    assert (example.loss_mask == np.r_[np.zeros(length), np.ones(5)]).all()
    assert set(example.extras) == {"logps", "sampler_logps", "advantages", "weights"}
    sampled = {"logps": step.logps, "sampler_logps": step.sampler_logps, "advantages": -0.5, "weights": 0.25}
    for name, values in sampled.items():
        assert example.extras[name].dtype == np.float32
        assert (example.extras[name][:length] == 0).all()
        assert (example.extras[name][length:] == values).all()
    assert example.patch_count == 128
    batch = lay_out_rows([[example]], config, 256, 128)
    assert (batch["visual_index"][0] >= 0).sum() == 32  # the sampled pads are ordinary tokens
    assert (batch["visual_index"][0, length:] == -1).all()


def test_rl_example_ignores_all_text(trajectories, processor, context):
    trajectory = with_ids(trajectories[0], processor, context, 0)
    step = dataclasses.replace(trajectory.steps[0], response="other", conclusion="other", thought="other")
    other = dataclasses.replace(trajectory, instruction="other", steps=(step, *trajectory.steps[1:]))
    a, b = (rl_example(t, 0, processor, 1.0) for t in (trajectory, other))
    assert (a.tokens == b.tokens).all()


@pytest.mark.parametrize("field", ["prompt_ids", "token_ids", "logps", "sampler_logps"])
def test_lost_ids_raise(trajectories, processor, context, field):
    trajectory = with_ids(trajectories[0], processor, context, 0)
    lost = {field: None} | ({"logps": None, "sampler_logps": None} if field == "token_ids" else {})
    step = dataclasses.replace(trajectory.steps[0], **lost)
    with pytest.raises(TransportError, match=f"step 0 of trajectory open:0 lost .*{field}"):
        rl_example(dataclasses.replace(trajectory, steps=(step,)), 0, processor, 1.0)


def test_ids_that_do_not_belong_together_raise(trajectories, processor, context):
    trajectory = with_ids(trajectories[0], processor, context, 0)
    step = trajectory.steps[0]
    empty = dict(token_ids=np.zeros(0, np.int32), logps=np.zeros(0, np.float32), sampler_logps=np.zeros(0, np.float32))
    for change, complaint in [
        (empty, "at least one"),
        ({"prompt_ids": step.prompt_ids[:3]}, "image tokens"),
    ]:
        broken = dataclasses.replace(trajectory, steps=(dataclasses.replace(step, **change),))
        with pytest.raises(TransportError, match=complaint):
            rl_example(broken, 0, processor, 1.0)


class Counting(list):
    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return super().__getitem__(index)


def test_cache_keeps_what_fits_and_shares_screens(trajectories, processor, context):
    source = Counting(StepExamples(trajectories, processor, context))
    cached = CachedExamples(source)
    first = [cached[i] for i in range(len(cached))]
    for a, b in zip(first, source):
        assert (a.tokens == b.tokens).all() and (a.loss_mask == b.loss_mask).all()
        assert all((x.patches == y.patches).all() and x.grid == y.grid for x, y in zip(a.images, b.images, strict=True))
    assert all(a is cached[i] for i, a in enumerate(first))
    assert source.reads == len(source)
    shown = [image for example in first for image in example.images]
    different = {id(image): image for image in shown}
    assert len(different) == sum(len(trajectory.steps) for trajectory in trajectories) < len(shown)
    texts = sum(example.tokens.nbytes + example.loss_mask.nbytes for example in first)
    assert cached.used_bytes == texts + sum(image.patches.nbytes for image in different.values())
    small = CachedExamples(source, max_bytes=cached.used_bytes // 2)
    source.reads = 0
    for i in [*range(len(small)), *range(len(small))]:
        assert (small[i].tokens == first[i].tokens).all()
    assert len(source) < source.reads < 2 * len(source)
    assert small.used_bytes < 0.6 * cached.used_bytes
    copy = pickle.loads(pickle.dumps(cached))
    assert len(copy) == len(cached) and copy.used_bytes == 0
