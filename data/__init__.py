"""Datasets and Grain pipelines."""
