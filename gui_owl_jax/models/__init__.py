"""Qwen-VL in Flax NNX."""
