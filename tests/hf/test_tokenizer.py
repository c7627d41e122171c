from __future__ import annotations

import hashlib
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from gui_owl_jax.agent.errors import CheckpointError, ConfigError, DataError
from gui_owl_jax.hf import byte_bpe
from gui_owl_jax.hf.byte_bpe import ADDED_TOKENS, SPECIAL_TOKENS
from gui_owl_jax.hf.tokenizer import Tokenizer, qwen_tokenizer, small_tokenizer

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CLICK = '{"name": "mobile_use", "arguments": {"action": "click", "coordinate": ['


@pytest.fixture(scope="module")
def qwen() -> Tokenizer:
    return qwen_tokenizer()


def random_texts(count: int) -> list[str]:
    """Strings over all of Unicode, with runs of ASCII, white space, combining marks and spelled special tokens."""
    rng = random.Random(0)
    pieces = [
        " ",
        "\n",
        "\r\n",
        "\t",
        "\u0301",
        "e\u0301",
        "12",
        ", ",
        "]}}",
        CLICK,
        '"}}',
        "</tool_call>",
        *SPECIAL_TOKENS,
    ]
    texts = []
    for _ in range(count):
        text = ""
        for _ in range(rng.randrange(12)):
            code = rng.randrange(0x110000)
            text += rng.choice(
                [rng.choice(pieces), chr(rng.randrange(32, 127)), "" if 0xD800 <= code < 0xE000 else chr(code)]
            )
        texts.append(text)
    return texts


@pytest.mark.parametrize("allow_special", [True, False])
def test_small_round_trip_is_exact_on_any_unicode(small, allow_special):
    for text in random_texts(2000):
        assert small.decode(small.encode(text, allow_special)) == text


def test_small_gives_every_byte_and_id_a_token(small):
    assert small.vocab_size == 1024
    assert None not in small.tokens(range(1024))
    assert len(set(small.tokens(range(1024)))) == 1024


def test_small_places_special_tokens(small, places):
    for name, index in places.items():
        assert small.special(name) == index
        assert small.encode(f"<|{name}|>") == [index]
    assert (small.image_pad, small.im_end, small.endoftext) == (1000, 1005, 1006)
    assert all(len(small.encode(token)) == 1 for token in ADDED_TOKENS)


def test_small_keeps_tool_calls_short(small):
    assert len(small.encode(CLICK)) == 1
    assert len(small.encode("]}}")) == 1
    ids = small.encode(f"{CLICK}512, 384]}}}}")
    assert small.tokens(ids) == [CLICK, "5", "1", "2", ",Ġ", "3", "8", "4", "]}}"]


def test_small_does_not_depend_on_order_or_process(small, corpus, places):
    shuffled = list(corpus)
    random.Random(3).shuffle(shuffled)
    code = (
        "import json, sys\n"
        "from gui_owl_jax.hf.tokenizer import small_tokenizer\n"
        "corpus, places = json.load(sys.stdin)\n"
        "print(json.dumps(small_tokenizer(iter(corpus), 1024, places).tokens(range(1024))))"
    )
    env = os.environ | {"PYTHONHASHSEED": "77", "RAYON_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([shuffled, places]),
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == small.tokens(range(1024))
    again = small_tokenizer(shuffled, 1024, places)
    for text in random_texts(300) + shuffled:
        assert again.encode(text) == small.encode(text)


@pytest.mark.parametrize(
    ("size", "places", "message"),
    [
        (200, {}, "bytes alone"),
        (20, {}, "too small"),
        (1024, {"nonsense": 3}, "nonsense"),
        (1024, {"im_end": 1024}, "outside"),
        (1024, {"im_end": 5, "im_start": 5}, "twice"),
    ],
)
def test_small_refuses_impossible_places(size, places, message, corpus):
    with pytest.raises(ConfigError, match=message):
        small_tokenizer(corpus, size, places)


@pytest.mark.parametrize("which", ["small", "qwen"])
def test_spelled_special_tokens_become_ids_only_when_allowed(which, request):
    tokenizer = request.getfixturevalue(which)
    specials = {tokenizer.special(token) for token in SPECIAL_TOKENS}
    for token in SPECIAL_TOKENS:
        assert tokenizer.encode(f"a{token}b").count(tokenizer.special(token)) == 1
        plain = tokenizer.encode(f"a{token}b", allow_special=False)
        assert not specials & set(plain)
        assert tokenizer.decode(plain) == f"a{token}b"
    # The words of the language keep their ids in both modes.
    assert tokenizer.special("<tool_call>") in tokenizer.encode("<tool_call>", allow_special=False)


def test_ids_without_a_token_show_in_the_text(small):
    hello = small.encode("hello")
    assert small.decode([*hello, 5000, -1, *hello]) == "hello\ufffd\ufffdhello"
    assert small.decode(np.asarray(hello, np.int32)) == "hello"
    assert small.decode([]) == ""


def test_broken_text_and_unknown_tokens_are_refused(small):
    with pytest.raises(DataError, match="surrogate"):
        small.encode("a\ud83d")
    with pytest.raises(ConfigError, match="no_such_token"):
        small.special("no_such_token")


def test_pickle_keeps_both_modes(small, corpus):
    copy = pickle.loads(pickle.dumps(small))
    for text in ["<|im_end|>x", corpus[0]]:
        for allow in (True, False):
            assert copy.encode(text, allow) == small.encode(text, allow)


def test_save_and_load(small, tmp_path, corpus):
    small.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    for text in random_texts(200) + list(corpus):
        assert loaded.encode(text) == small.encode(text)
    assert loaded.config == small.config
    loaded.save(tmp_path / "again")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_transformers_loads_the_small_tokenizer(small, tmp_path, corpus):
    transformers = pytest.importorskip("transformers")
    small.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.eos_token_id, theirs.pad_token_id) == (small.im_end, small.endoftext)
    for text in random_texts(500) + list(corpus):
        assert theirs(text)["input_ids"] == small.encode(text)
        assert theirs.decode(small.encode(text)) == text


def test_transformers_loads_the_qwen_tokenizer(qwen, tmp_path, corpus):
    transformers = pytest.importorskip("transformers")
    qwen.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__.startswith("Qwen2Tokenizer")
    assert (theirs.eos_token_id, theirs.pad_token_id) == (qwen.im_end, qwen.endoftext)
    for text in random_texts(300) + list(corpus):
        assert theirs(text)["input_ids"] == qwen.encode(text)


def test_qwen_layout(qwen):
    assert qwen.vocab_size == 151_669
    assert [qwen.special(token) for token in ADDED_TOKENS] == list(range(151_643, 151_669))
    ids = qwen.encode("e\u0301")  # NFC
    assert qwen.decode(ids) == "\u00e9"


def test_qwen_equals_the_published_tokenizer(qwen, conformance):
    cases = json.loads((conformance / "tokenizer" / "retokenization_cases.json").read_text())
    assert cases
    for case in cases:
        assert qwen.decode(case["sampled"]) == case["text"]
        assert qwen.encode(case["text"]) == case["reencoded"]


def test_qwen_data_file_is_checked(monkeypatch, tmp_path):
    class Entry:
        name = "qwen.tiktoken"

        def locate(self):
            return tmp_path / "qwen.tiktoken"

    (tmp_path / "qwen.tiktoken").write_bytes(b"IQ== 0\n")
    monkeypatch.setattr(byte_bpe.importlib.metadata, "files", lambda name: [Entry()])
    with pytest.raises(CheckpointError, match=hashlib.sha256(b"IQ== 0\n").hexdigest()):
        byte_bpe.qwen_data_file()


def test_qwen_cache_is_rebuilt_when_damaged(qwen, monkeypatch, tmp_path, corpus):
    monkeypatch.setenv("GUI_OWL_CACHE", str(tmp_path))
    cached = tmp_path / "qwen_tokenizer_b2b1b8df.json"
    cached.write_text("{ cut short")
    texts = [*corpus, *random_texts(100)]
    expected = [qwen.encode(text) for text in texts]
    for state in ("built", "read from the cache"):
        again = qwen_tokenizer.__wrapped__()  # past the cache in memory
        assert [again.encode(text) for text in texts] == expected, state
    assert [p.name for p in tmp_path.iterdir()] == [cached.name]
    assert json.loads(cached.read_text())["model"]["type"] == "BPE"


@pytest.mark.parametrize("content", [None, "{}", "not json", '{"model": {"type": "BPE"'])
def test_damaged_tokenizer_files_are_named(content, tmp_path):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="tokenizer.json"):
        Tokenizer.load(tmp_path)
