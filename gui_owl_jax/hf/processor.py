"""From chat messages and screenshots to the ids and patches that the model reads, and back."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.prompts import Message, SampledTurn, Special, chat_pieces
from gui_owl_jax.hf import files
from gui_owl_jax.hf.images import ImageConfig, image_patches
from gui_owl_jax.hf.tokenizer import Tokenizer
from gui_owl_jax.models.layout import ImagePatches

_CACHED_TEXTS = 8192
# Only the image processor's numbers matter to agents; these are the published bounds for videos.
_VIDEO_SIZE = {"longest_edge": 25165824, "shortest_edge": 4096}


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedPrompt:
    """What the model reads before it answers.

    Attributes:
      ids: int32 [L]; every screenshot is vision_start, one image_pad per merged patch, vision_end.
      images: the screenshots' patches, in the order of their pads.
    """

    ids: np.ndarray
    images: tuple[ImagePatches, ...]


class Processor:
    """Renders the published Qwen3-VL chat format straight to ids.

    The ids are those of tokenising the rendered text, with two differences that training relies on. Assistant turns
    that carry sampled ids are spliced in as those ids, never as text; and text that spells a special token stays
    plain text. Immutable; can be pickled.
    """

    def __init__(self, tokenizer: Tokenizer, image_config: ImageConfig | None = None):
        self.tokenizer = tokenizer
        self.image_config = image_config or ImageConfig()
        # Rollouts encode the same system prompts and earlier turns thousands of times.
        self._encode = functools.lru_cache(maxsize=_CACHED_TEXTS)(self._encode_text)

    def __reduce__(self):
        return Processor, (self.tokenizer, self.image_config)

    def encode_prompt(
        self,
        messages: Sequence[Message],
        images: Mapping[int, np.ndarray],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> EncodedPrompt:
        """Encodes a chat up to and including the opening of the next assistant turn.

        Args:
          messages: the chat.
          images: screenshots uint8 [H, W, 3] by step index, for every `ImageRef` in the messages.
          tools: JSON function schemas for the template's tools section.

        Raises:
          DataError: a screenshot is missing or malformed, or the messages do not fit the chat format.
        """
        ids: list[np.ndarray] = []
        patches: list[ImagePatches] = []
        text = ""  # between two special ids the text is one string: pieces of it may share a token
        for piece in chat_pieces(messages, tools=tools):
            if isinstance(piece, str):
                text += piece
                continue
            if text:
                ids.append(self._encode(text))
                text = ""
            if isinstance(piece, Special):
                ids.append(np.asarray([self.tokenizer.special(piece.token)], np.int32))
            elif isinstance(piece, SampledTurn):
                sampled = np.asarray(piece.token_ids, np.int32)
                # The template closes every turn; most sampled ones have closed themselves.
                closed = sampled.size > 0 and sampled[-1] == self.tokenizer.im_end
                ids.append(sampled[:-1] if closed else sampled)
            else:
                if piece.step not in images:
                    raise DataError(f"the prompt shows the screenshot of step {piece.step}, which is missing")
                image = image_patches(images[piece.step], self.image_config)
                patches.append(image)
                pads = image.patches.shape[0] // self.image_config.merge_size**2
                ids.append(np.full(pads, self.tokenizer.image_pad, np.int32))
        if text:
            ids.append(self._encode(text))
        return EncodedPrompt(np.concatenate(ids), tuple(patches))

    def encode_response(self, text: str) -> np.ndarray:
        """The ids int32 [T] of an assistant turn, closed by im_end."""
        return np.append(self._encode(text), np.int32(self.tokenizer.im_end))

    def decode_response(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of sampled ids, up to the first im_end or endoftext."""
        array = np.asarray(ids)
        ends = np.flatnonzero((array == self.tokenizer.im_end) | (array == self.tokenizer.endoftext))
        return self.tokenizer.decode(array[: ends[0]] if ends.size else array)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer's files, preprocessor_config.json and video_preprocessor_config.json."""
        path = Path(folder)
        self.tokenizer.save(path)
        content = self.image_config.to_json()
        files.write_json(path / "preprocessor_config.json", content)
        video = {k: v for k, v in content.items() if k != "image_processor_type"}
        files.write_json(
            path / "video_preprocessor_config.json",
            video | {"size": _VIDEO_SIZE, "video_processor_type": "Qwen3VLVideoProcessor"},
        )

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Processor:
        """Reads what `save` wrote, or the files of a published checkpoint.

        Raises:
          CheckpointError: a file is missing or damaged.
        """
        return cls(Tokenizer.load(folder), ImageConfig.load(folder))

    def _encode_text(self, text: str) -> np.ndarray:
        ids = np.asarray(self.tokenizer.encode(text, allow_special=False), np.int32)
        ids.flags.writeable = False  # shared by the cache
        return ids
