"""Every field of an experiment with its default; the other configs change a few.

Command: none, it is not an experiment of its own.
"""

from ml_collections import ConfigDict


def get_config(arg: str = "") -> ConfigDict:
    """The defaults. `arg` is not used."""
    del arg
    config = ConfigDict()
    config.stage = "supervised"  # supervised (pre-training and SFT) | mrpo
    config.seed = 0
    config.init = "random"  # a Hugging Face folder, a run folder of launch.train, or "random"
    config.tokenizer = "qwen"  # "qwen", "small", or a folder; used where `init` brings none
    config.steps = 1000  # optimizer updates
    config.log_every = 10
    config.checkpoint_every = 200
    config.keep_checkpoints = 2
    config.compilation_cache = ""  # default: .cache/jax
    config.compute = ConfigDict({"dtype": "bfloat16", "remat": True, "accumulate": 1, "chunk": 1024})

    config.distributed = ConfigDict(
        {"enabled": False, "coordinator_address": "", "num_processes": -1, "process_id": -1}
    )
    config.mesh = ConfigDict({"data": 1, "fsdp": 1, "tensor": 1, "expert": 1})
    # Of rollouts and evaluations; data 0: there is none, and each process samples on one of its devices.
    config.sampling_mesh = ConfigDict({"data": 0, "fsdp": 1, "tensor": 1, "expert": 1})
    config.model = ConfigDict({"preset": "4b", "vision_window": 0})  # see models.config.VisionConfig.window
    config.image = ConfigDict({"min_pixels": 0, "max_pixels": 0})  # 0: the bounds published with the model
    config.context = ConfigDict({"history_n": 4, "style": "full"})

    # Supervised stages read trajectories; the batch of all hosts is `rows` packed rows of a token and a patch budget.
    config.data = ConfigDict(
        {
            "path": "",  # prefix of ArrayRecord shards
            "format": "records",  # records | agentnet (one recorded desktop trajectory as JSON)
            "mixture": ConfigDict({"steps": 1.0, "listing": 0.0, "locate": 0.0, "clicks": 0.0}),  # shares of examples
            "keep_failures": False,  # imitate trajectories that failed too
            "limit": 0,  # use the first so many trajectories; 0: all
            "rows": 16,
            "token_budget": 8192,
            "patch_budget": 16384,
            "lanes": 0,  # parts of the data, packed on their own; a multiple of the hosts. 0: one per host. Batches
            # depend on the lanes and not on the hosts: state the lanes to get the same batches on fewer hosts
            "workers": 0,  # processes per lane that make examples
        }
    )
    config.optimizer = ConfigDict(  # fields of training.optimizer.OptimizerConfig; total_steps is config.steps
        {
            "name": "adamw",
            "learning_rate": 1e-5,
            "schedule": "cosine",
            "warmup_steps": 50,
            "end_fraction": 0.1,
            "clip_norm": 1.0,
            "b1": 0.9,
            "b2": 0.95,
            "learning_rate_rules": (),  # (regex of parameter paths, multiplier), the first match wins; 0 freezes
            "weight_decay_rules": (("text/layers/.*kernel", 0.01),),
        }
    )

    # LoRA (training.lora.LoraConfig); rank 0: off. With it only the adapters are trained, and what the optimizer's
    # learning_rate_rules name.
    config.lora = ConfigDict({"rank": 0, "alpha": 16.0, "pattern": "text/layers/(q|k|v|o|gate|up|down)/kernel"})

    # Environments and rollouts.
    config.env = ConfigDict({"world": "envs.virtual", "slots": 32, "deadline_s": 30.0})
    config.sampler = ConfigDict(  # fields of rollout.engine.SamplerConfig
        {
            "max_new_tokens": 256,
            "temperature": 1.0,
            "row_buckets": (8, 64),
            "length_buckets": (512, 1024, 2048, 4096, 8192, 16384),
            "patch_buckets": (1024, 4096, 8192, 16384, 32768, 65536),
        }
    )

    # MRPO. The next four sections are the fields of rl.strategies.SelectionConfig, rl.advantages.AdvantageConfig,
    # rl.objective.ObjectiveConfig and rl.schedule.ScheduleConfig.
    config.selection = ConfigDict({"strategy": "swap1", "group_size": 8, "weighting": "inclusion"})
    config.advantage = ConfigDict({"kind": "grpo", "baseline": "group", "negative_scale": 1.0})
    config.objective = ConfigDict(
        {"clip_low": 0.2, "clip_high": 0.28, "kl_coefficient": 0.01, "kl_estimator": "k3", "importance": "token"}
        | {"aggregation": "sequence_mean"}
    )
    config.schedule = ConfigDict({"kind": "alternating", "stage_length": 8, "order": ("mobile", "desktop", "web")})
    config.rl = ConfigDict(
        {
            "tasks": 8,  # tasks per update
            "oversample": 2,  # k: a pool is k n rollouts
            "task_weights": "uniform",  # uniform | unstable | posterior, over task templates
            "task_floor": 0.2,
            "trajectory_mean": True,  # every trajectory counts the same, however many steps it took
            "transport": "ids",  # what is trained on: the sampled ids; nothing else is wired
            "epochs": 1,  # passes over a batch of rollouts
            "row_buckets": (16, 32, 48, 64),
            "token_budget": 8192,
            "patch_budget": 16384,
        }
    )
    config.evaluation = ConfigDict(
        {"tasks_per_family": 60, "seed": 7, "temperature": 0.0, "grounding_screens": 200, "controls": False}
    )
    return config
