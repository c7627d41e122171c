"""Our engine as an `Answerer`: questions in, words out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.benchmark import Reply, Request
from gui_owl_jax.hf.processor import EncodedPrompt, Processor
from gui_owl_jax.rollout.engine import Engine, Sample, request_seed


@dataclasses.dataclass(frozen=True, eq=False)
class EngineAnswerer:
    """Answers with a policy of ours (an `evals.benchmark.Answerer`).

    Attributes:
      engine: how the policy is sampled; temperature 0 is greedy. Its buckets decide which shapes are compiled.
      params: the policy's parameters, where the engine wants them.
      processor: the policy's tokenizer and image processor.
    """

    engine: Engine
    params: Any
    processor: Processor

    def __call__(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request; a request that the processor cannot encode (too elongated an image) fails alone.

        Raises:
          ConfigError: a prompt is beyond the engine's largest bucket.
        """
        prompts = [self._encoded(request) for request in requests]
        good = [(request, prompt) for request, prompt in zip(requests, prompts) if isinstance(prompt, EncodedPrompt)]
        samples: Iterator[Sample] = iter(())
        if good:
            seeds = np.stack([request_seed(*request.seed) for request, _ in good])
            samples = iter(self.engine.generate(self.params, [prompt for _, prompt in good], seeds))
        return [
            Reply(self.processor.decode_response(next(samples).token_ids), self._shown(prompt))
            if isinstance(prompt, EncodedPrompt)
            else Reply("", failure=prompt)
            for prompt in prompts
        ]

    def _encoded(self, request: Request) -> EncodedPrompt | str:
        """The prompt, or why there is none."""
        try:
            return self.processor.encode_prompt(request.messages, request.images)
        except DataError as error:
            return str(error)

    def _shown(self, prompt: EncodedPrompt) -> tuple[int, int]:
        if not prompt.images:
            return 0, 0
        rows, columns = prompt.images[-1].grid
        side = self.processor.image_config.patch_size
        return columns * side, rows * side
