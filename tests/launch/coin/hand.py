"""Names of elements; there are none."""

from __future__ import annotations


def element_phrase(family, element) -> str:
    return f"Tap {element.text}."
