"""From chat messages and screenshots to the ids and patches that the model reads, and back."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.prompts import (
    END_THINK,
    ImageRef,
    Message,
    Piece,
    SampledTurn,
    Special,
    VideoRef,
    chat_pieces,
)
from gui_owl_jax.hf import files, video
from gui_owl_jax.hf.images import ImageConfig, image_patches
from gui_owl_jax.hf.tokenizer import Tokenizer
from gui_owl_jax.hf.video import Video, VideoConfig
from gui_owl_jax.models.layout import ImagePatches

_CACHED_TEXTS = 8192


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedPrompt:
    """What the model reads before it answers.

    Attributes:
      ids: int32 [L]; every screenshot is vision_start, one image_pad per merged patch, vision_end; for videos see
        `video.video_pieces`.
      images: the patches of screenshots and videos, in the order of their pads.
    """

    ids: np.ndarray
    images: tuple[ImagePatches, ...]


class Processor:
    """Renders the published Qwen3-VL chat format straight to ids, for the models of every family.

    Qwen2.5-VL models are prompted in the same format. It differs from their published one in two points: a chat without
    a system message gets none (theirs: "You are a helpful assistant."), and tools and their answers have a place.

    The ids are those of tokenising the rendered text, with two differences that training relies on. Assistant turns
    that carry sampled ids are spliced in as those ids, never as text; and text that spells a special token stays
    plain text. Immutable; can be pickled.

    Attributes:
      tokenizer: text to ids; its chat template decides on the format of Instruct or of Thinking models.
      image_config: how screenshots become patches.
      video_config: how videos do.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        image_config: ImageConfig | None = None,
        video_config: VideoConfig | None = None,
    ):
        self.tokenizer = tokenizer
        self.image_config = image_config or ImageConfig()
        self.video_config = video_config or VideoConfig.for_family(self.image_config.family)
        # Rollouts encode the same system prompts and earlier turns thousands of times.
        self._encode = functools.lru_cache(maxsize=_CACHED_TEXTS)(self._encode_text)

    def __reduce__(self):
        return Processor, (self.tokenizer, self.image_config, self.video_config)

    def encode_prompt(
        self,
        messages: Sequence[Message],
        images: Mapping[int, np.ndarray],
        *,
        videos: Mapping[int, Video] | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> EncodedPrompt:
        """Encodes a chat up to and including the opening of the next assistant turn.

        Args:
          messages: the chat.
          images: screenshots uint8 [H, W, 3] by step index, for every `ImageRef` in the messages.
          videos: by key, for every `VideoRef`.
          tools: JSON function schemas for the template's tools section.

        Raises:
          DataError: a screenshot or video is missing or malformed, or the messages do not fit the chat format.
        """
        ids: list[np.ndarray] = []
        patches: list[ImagePatches] = []
        text = ""  # between two special ids the text is one string: pieces of it may share a token
        pieces = chat_pieces(messages, tools=tools, thinking=self.tokenizer.thinking)
        for piece in self._with_patches(pieces, images, videos or {}):
            if isinstance(piece, str):
                text += piece
                continue
            if text:
                ids.append(self._encode(text))
                text = ""
            if isinstance(piece, Special):
                ids.append(np.asarray([self.tokenizer.special(piece.token)], np.int32))
            elif isinstance(piece, SampledTurn):
                ids.append(self._sampled_ids(piece))
            else:
                patches.append(piece)
                pad = self.tokenizer.video_pad if piece.video else self.tokenizer.image_pad
                ids.append(np.full(len(piece.patches) // self.image_config.merge_size**2, pad, np.int32))
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
        files.write_json(path / "preprocessor_config.json", self.image_config.to_json())
        files.write_json(path / video.FILE, self.video_config.to_json(self.image_config))

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Processor:
        """Reads what `save` wrote, or the files of a published checkpoint.

        Raises:
          CheckpointError: a file is missing or damaged.
        """
        images = ImageConfig.load(folder)
        return cls(Tokenizer.load(folder), images, VideoConfig.load(folder, images))

    def _with_patches(
        self, pieces: Sequence[Piece], images: Mapping[int, np.ndarray], videos: Mapping[int, Video]
    ) -> Iterator[str | Special | SampledTurn | ImagePatches]:
        """Puts patches in the place of references, and around those of a video what belongs there."""
        for piece in pieces:
            if isinstance(piece, ImageRef):
                if piece.step not in images:
                    raise DataError(f"the prompt shows the screenshot of step {piece.step}, which is missing")
                yield image_patches(images[piece.step], self.image_config)
            elif isinstance(piece, VideoRef):
                if piece.video not in videos:
                    raise DataError(f"the prompt shows video {piece.video}, which is missing")
                config = self.video_config
                config = config if piece.fps is None else dataclasses.replace(config, fps=piece.fps)
                yield from video.video_pieces(videos[piece.video], self.image_config, config)
            else:
                yield piece

    def _sampled_ids(self, turn: SampledTurn) -> np.ndarray:
        """The ids of a sampled turn as they stand in a prompt, without the id that closes it."""
        ids = np.asarray(turn.token_ids, np.int32)
        # The template closes every turn; most sampled ones have closed themselves.
        if ids.size and ids[-1] == self.tokenizer.im_end:
            ids = ids[:-1]
        if not turn.answer_only:
            return ids
        closed = np.flatnonzero(ids == self.tokenizer.special(END_THINK))
        ids = ids[closed[-1] + 1 :] if closed.size else ids
        while ids.size and closed.size and not self.tokenizer.decode(ids[:1]).strip("\n"):
            ids = ids[1:]
        return ids

    def _encode_text(self, text: str) -> np.ndarray:
        ids = np.asarray(self.tokenizer.encode(text, allow_special=False), np.int32)
        ids.flags.writeable = False  # shared by the cache
        return ids
