"""Benchmarks with a published checkpoint or an endpoint: one screenshot a question, greedy answers.

Command:
  python -m launch.evaluate --benchmark=screenspot_pro --data=ANNOTATIONS --images=IMAGES --policy=CHECKPOINT \
      --dialect=gui_owl_1_5 --out=runs/screenspot_pro

Without --config this one is used; state it to change a field: --config=configs/benchmark.py
--config.image.max_pixels=2000000. The chips of a slice share the rows of a batch.
Nothing here was measured on accelerators yet.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str = "") -> ConfigDict:
    """The experiment. `arg` is not used."""
    config = base.get_config(arg)
    config.sampler.update({"max_new_tokens": 512, "temperature": 0.0, "row_buckets": (8,)})
    config.sampling_mesh.data = -1  # all devices, each with a copy of the weights
    # What is asked together; the buckets of the sampler decide how it is cut into the batches of a device.
    config.benchmark = ConfigDict({"batch": 32})
    # Fields of evals.endpoint.EndpointConfig beside url and model. How the served model sees images is taken
    # from config.model.preset and config.image.
    config.endpoint = ConfigDict({"timeout_s": 300.0, "retries": 5, "backoff_s": 1.0, "concurrency": 8})
    return config
