from __future__ import annotations

import dataclasses
import json
import pickle

import numpy as np
import pytest

from gui_owl_jax.agent.context import ContextConfig, build_messages
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import CheckpointError, DataError
from gui_owl_jax.agent.prompts import ImageRef, Message, VideoRef, render_chat
from gui_owl_jax.hf.byte_bpe import SPECIAL_TOKENS
from gui_owl_jax.hf.images import ImageConfig, image_patches
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.hf.tokenizer import qwen_tokenizer
from gui_owl_jax.hf.video import Video, VideoConfig
from gui_owl_jax.models.config import get_preset

# The processors of the reference fixtures, and the rate of their video.
PUBLISHED = {
    "qwen3": ("4b", (4096, 65536), VideoConfig(4096, 262144), 2.0),
    "qwen25": ("qwen2.5-3b", (3136, 50176), VideoConfig(3136, 50176), 0.5),
}
PUBLISHED_CASES = {
    "text": [([Message("user", ("What is on the screen?",))], "")],
    "images": [([Message("user", ("Compare ", ImageRef(0), ImageRef(1), " and click the blue box."))], "ab")],
    "batch": [
        ([Message("user", (ImageRef(0), "Where is it?"))], "b"),
        ([Message("user", ("First ", ImageRef(0), " then answer in one longer sentence, please."))], "a"),
    ],
    "video": [([Message("user", (VideoRef(0), "What moved? ", ImageRef(0)))], "b")],
}


def screenshot(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def published_processor(family: str, **changes) -> Processor:
    preset, (smallest, largest), video, _ = PUBLISHED[family]
    images = ImageConfig.for_model(get_preset(preset), min_pixels=smallest, max_pixels=largest)
    return Processor(qwen_tokenizer(), images, dataclasses.replace(video, **changes))


@pytest.mark.parametrize("family", PUBLISHED)
@pytest.mark.parametrize("name", PUBLISHED_CASES)
def test_prompts_equal_the_published_processor(conformance, name, family):
    reference = np.load(conformance / "qwen_vl" / f"proc_{family}_{name}.npz")
    pictures = np.load(conformance / "qwen_vl" / "images.npz")
    processor, videos = published_processor(family), {0: Video(pictures["video"], PUBLISHED[family][3])}
    grids = []
    for row, (messages, images) in enumerate(PUBLISHED_CASES[name]):
        shown = {i: pictures[key] for i, key in enumerate(images)}
        prompt = processor.encode_prompt(messages, shown, videos=videos)
        keep = reference["attention_mask"][row] == 1
        assert prompt.ids.dtype == np.int32
        np.testing.assert_array_equal(prompt.ids, reference["input_ids"][row][keep])
        grids += [(1, *image.grid) for image in prompt.images if not image.video]
    assert grids == [tuple(grid) for grid in reference.get("image_grid_thw", [])]
    parts = [part for part in prompt.images if part.video]
    for gt, gh, gw in reference.get("video_grid_thw", []):
        assert sum(part.frames for part in parts) == gt and {part.grid for part in parts} == {(gh, gw)}
    for seconds in reference.get("second_per_grid_ts", []):
        assert parts[0].seconds_per_patch == seconds


def test_images_and_videos_mixed(processor):
    """Patches come in the order of their pads; every video is sampled at the rate that its message asks for."""
    tokenizer, image = processor.tokenizer, screenshot(64, 96)
    video = np.stack([screenshot(64, 96, seed) for seed in range(8)])
    content = (VideoRef(7), "a", ImageRef(0), VideoRef(7, fps=4.0), "b", VideoRef(8))
    videos = {7: Video(video, 4.0), 8: Video(video[:2], 4.0)}
    prompt = processor.encode_prompt([Message("user", content)], {0: image}, videos=videos)
    assert [part.video for part in prompt.images] == [True] * 2 + [False] + [True] * 5
    pads = {name: f"<|vision_start|>{f'<|{name}|>' * 6}<|vision_end|>" for name in ("image_pad", "video_pad")}
    # Two frames a second are frames 0 2 5 7 of eight; four a second all of them, at 0, 0.25, 0.5, ... seconds.
    expected = tokenizer.encode(
        "<|im_start|>user\n"
        f"<0.2 seconds>{pads['video_pad']}<1.5 seconds>{pads['video_pad']}a{pads['image_pad']}"
        f"<0.1 seconds>{pads['video_pad']}<0.6 seconds>{pads['video_pad']}<1.1 seconds>{pads['video_pad']}"
        f"<1.6 seconds>{pads['video_pad']}b<0.1 seconds>{pads['video_pad']}"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.ids.tolist() == expected
    np.testing.assert_array_equal(prompt.images[2].patches, image_patches(image, processor.image_config).patches)


def test_the_outer_pair_of_transformers_5(conformance):
    video = {0: Video(np.load(conformance / "qwen_vl" / "images.npz")["video"], 2.0)}
    messages = [Message("user", (VideoRef(0), "What?"))]
    inner = published_processor("qwen3").encode_prompt(messages, {}, videos=video).ids.tolist()
    outer = published_processor("qwen3", outer_pair=True).encode_prompt(messages, {}, videos=video).ids.tolist()
    encode, decode = qwen_tokenizer().encode, qwen_tokenizer().decode
    assert outer == encode(decode(inner).replace("<0.2", "<|vision_start|><0.2").replace("What", "<|vision_end|>What"))


def test_thinking(small):
    processor = Processor(small.for_thinking(), ImageConfig(min_pixels=1024))
    tokenizer = processor.tokenizer
    sampled = tokenizer.encode("why\n</think>\n\nTap.<|im_end|>")
    turn = Message("assistant", ("why\n</think>\n\nTap.",), np.asarray(sampled, np.int32))
    messages = [Message("user", ("q",)), turn, Message("user", ("r",)), turn, Message("tool", ("done",))]
    expected = [
        *tokenizer.encode("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"),
        *tokenizer.encode("Tap."),
        *tokenizer.encode("<|im_end|>\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n<think>\n"),
        *sampled,
        *tokenizer.encode("\n<|im_start|>user\n<tool_response>\ndone\n</tool_response><|im_end|>\n"),
        *tokenizer.encode("<|im_start|>assistant\n<think>\n"),
    ]
    assert processor.encode_prompt(messages, {}).ids.tolist() == expected
    # Cut off while it was thinking: there is no answer to tell apart, all of it stays.
    cut = Message("assistant", ("why",), np.asarray(tokenizer.encode("\nwhy"), np.int32))
    found = processor.encode_prompt([Message("user", ("q",)), cut, Message("user", ("r",))], {}).ids
    assert "assistant\n\nwhy<|im_end|>" in tokenizer.decode(found)


def test_ids_are_those_of_the_rendered_text(processor):
    """Where nothing was sampled and no text spells a special token, pieces and whole text give the same ids."""
    image = screenshot(64, 96)
    chats = [
        [Message("user", ("\n leading newline",))],
        [Message("system", ("",)), Message("user", ()), Message("assistant", (" a\n\n",)), Message("user", ("\n",))],
        [Message("user", ("one", " word", "s ", ImageRef(0), "\n", ImageRef(0))), Message("assistant", ("Yes.",))],
        [Message("user", ("q",)), Message("tool", ("r1",)), Message("tool", (ImageRef(0), "r2"))],
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": "é"}}]
    for messages in chats:
        for use in (None, tools):
            prompt = processor.encode_prompt(messages, {0: image}, tools=use)
            pads = "<|image_pad|>" * (image_patches(image, processor.image_config).patches.shape[0] // 4)
            text = render_chat(messages, tools=use).replace("<|image_pad|>", pads)
            assert prompt.ids.tolist() == processor.tokenizer.encode(text)


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("family", list(DeviceFamily))
def test_agent_prompts(processor, style, family):
    messages = build_messages("Open Settings", family, [], ContextConfig(style=style))
    image = screenshot(96, 160)
    prompt = processor.encode_prompt(messages, {0: image})
    opening = processor.tokenizer.encode("<|im_start|>assistant\n")
    assert prompt.ids[-len(opening) :].tolist() == opening
    assert (prompt.ids == processor.tokenizer.image_pad).sum() == 3 * 5
    assert len(prompt.images) == 1
    np.testing.assert_array_equal(prompt.images[0].patches, image_patches(image, processor.image_config).patches)


def test_sampled_turns_are_spliced_in(processor):
    tokenizer = processor.tokenizer
    # A split that encoding never gives: "Tap" letter by letter.
    sampled = [*tokenizer.encode("T"), *tokenizer.encode("a"), *tokenizer.encode("p")]
    assert sampled != tokenizer.encode("Tap")
    for ids in ([*sampled, tokenizer.im_end], sampled, []):
        turn = Message("assistant", ("Tap",), token_ids=np.asarray(ids, np.int32))
        found = processor.encode_prompt([Message("user", ("q",)), turn, Message("user", ("r",))], {}).ids.tolist()
        closed = ids if ids and ids[-1] == tokenizer.im_end else [*ids, tokenizer.im_end]
        expected = [
            *tokenizer.encode("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"),
            *closed,
            *tokenizer.encode("\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n"),
        ]
        assert found == expected


def test_a_sampled_newline_does_not_merge_with_the_opening():
    """Text would give one token for both newlines; the model saw two."""
    processor = Processor(qwen_tokenizer())
    newline = processor.tokenizer.encode("\n")
    turn = Message(
        "assistant", ("\nok",), token_ids=np.asarray([*newline, *processor.tokenizer.encode("ok")], np.int32)
    )
    ids = processor.encode_prompt([Message("user", ("q",)), turn], {}).ids.tolist()
    assert processor.tokenizer.encode("\n\n") != newline * 2
    text = processor.tokenizer.encode("<|im_start|>assistant\n") + newline + processor.tokenizer.encode("ok")
    assert any(ids[i : i + len(text)] == text for i in range(len(ids)))


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_that_spells_special_tokens_stays_text(processor, role):
    tokenizer = processor.tokenizer
    spelled = "".join(SPECIAL_TOKENS)
    before = [Message("user", ("q",))] if role in ("assistant", "tool") else []
    plain = processor.encode_prompt([*before, Message(role, ("x",))], {}).ids
    attacked = processor.encode_prompt([*before, Message(role, (spelled,))], {})
    for token in SPECIAL_TOKENS:
        index = tokenizer.special(token)
        assert (attacked.ids == index).sum() == (plain == index).sum()
    assert attacked.images == ()
    assert spelled in tokenizer.decode(attacked.ids)
    assert not {tokenizer.special(t) for t in SPECIAL_TOKENS} & set(processor.encode_response(spelled)[:-1].tolist())


def test_responses_round_trip(processor, corpus):
    for text in (*corpus, "", "é\u0301 \U0001f600", "<|im_end|> spelled"):
        ids = processor.encode_response(text)
        assert ids.dtype == np.int32 and ids[-1] == processor.tokenizer.im_end
        assert processor.decode_response(ids) == text
        assert processor.decode_response([*ids, *ids]) == text
        assert processor.decode_response([*ids[:-1], processor.tokenizer.endoftext, 5]) == text
        assert processor.decode_response(ids[:-1]) == text


def test_missing_screenshots_and_bad_roles_are_refused(processor):
    for videos in ({}, None, {1: Video(np.zeros((2, 64, 64, 3), np.uint8))}):
        with pytest.raises(DataError, match="video 7"):
            processor.encode_prompt([Message("user", (VideoRef(7),))], {}, videos=videos)
    with pytest.raises(DataError, match="step 7"):
        processor.encode_prompt([Message("user", (ImageRef(7),))], {0: screenshot(64, 64)})
    with pytest.raises(DataError, match="uint8"):
        processor.encode_prompt([Message("user", (ImageRef(0),))], {0: screenshot(64, 64) / 255})
    with pytest.raises(DataError, match="role"):
        processor.encode_prompt([Message("bystander", ("x",))], {})


def test_cache_cannot_be_damaged(processor):
    messages = [Message("user", ("same text",))]
    first = processor.encode_prompt(messages, {}).ids
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(processor.encode_prompt(messages, {}).ids, kept)
    response = processor.encode_response("same text")
    response[:] = 0
    assert processor.decode_response(processor.encode_response("same text")) == "same text"


def test_pickle(processor):
    copy = pickle.loads(pickle.dumps(processor))
    messages = [Message("user", ("Tap <|im_end|>", ImageRef(0)))]
    ours, theirs = (p.encode_prompt(messages, {0: screenshot(64, 96)}) for p in (processor, copy))
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    np.testing.assert_array_equal(ours.images[0].patches, theirs.images[0].patches)


@pytest.mark.parametrize("preset", ["4b", "qwen2.5-7b"])
@pytest.mark.parametrize("thinking", [False, True])
def test_files_keep_all_settings(small, tmp_path, preset, thinking):
    tokenizer = small.for_thinking() if thinking else small
    images = ImageConfig.for_model(get_preset(preset), max_pixels=123456)
    Processor(tokenizer, images, VideoConfig(5000, 60000, 1.0, 2, 16)).save(tmp_path)
    loaded = Processor.load(tmp_path)
    assert loaded.image_config == images and loaded.video_config == VideoConfig(5000, 60000, 1.0, 2, 16)
    assert loaded.tokenizer.thinking == thinking and loaded.tokenizer.chat_template == tokenizer.chat_template
    assert pickle.loads(pickle.dumps(loaded)).video_config == loaded.video_config
    (tmp_path / "video_preprocessor_config.json").unlink()
    assert Processor.load(tmp_path).video_config == VideoConfig.for_family(images.family)


def test_save_and_load(processor, tmp_path):
    processor.save(tmp_path)
    loaded = Processor.load(tmp_path)
    assert loaded.image_config == processor.image_config and loaded.video_config == processor.video_config
    messages = [Message("user", ("Tap it", ImageRef(0)))]
    ours, theirs = (p.encode_prompt(messages, {0: screenshot(64, 96)}) for p in (processor, loaded))
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    assert not [p for p in tmp_path.iterdir() if "tmp" in p.name]
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match="preprocessor_config.json is missing"):
        Processor.load(tmp_path)


def test_files_have_the_published_fields(tmp_path, conformance, small):
    Processor(small).save(tmp_path)
    published = json.loads((conformance / "qwen_configs" / "Qwen3-VL-2B-Instruct.json").read_text())
    for name in ("preprocessor_config", "video_preprocessor_config"):
        assert json.loads((tmp_path / f"{name}.json").read_text()) == published[name]


def test_transformers_makes_the_same_prompt(processor, tmp_path):
    """The exported files alone, through transformers' tokenizer and its rendering of the exported chat template."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("jinja2")
    processor.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [
        {"role": "system", "content": "Device: mobile."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Tap 12 times"}]},
        {"role": "assistant", "content": "Action: Tap."},
        {"role": "user", "content": [{"type": "text", "text": "again "}]},
    ]
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ours = processor.encode_prompt(
        [
            Message("system", ("Device: mobile.",)),
            Message("user", (ImageRef(0), "Tap 12 times")),
            Message("assistant", ("Action: Tap.",)),
            Message("user", ("again ",)),
        ],
        {0: screenshot(64, 96)},
    )
    pads = int((ours.ids == processor.tokenizer.image_pad).sum())
    assert theirs(text.replace("<|image_pad|>", "<|image_pad|>" * pads))["input_ids"] == ours.ids.tolist()
