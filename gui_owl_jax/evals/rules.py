"""How scoring rules are written: every setting by name, so that the name beside a figure says how it was made."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from gui_owl_jax.agent.errors import ConfigError

R = TypeVar("R")


def rule_name(rule: Any) -> str:
    """The full name of a rule, a dataclass of strings, which `parse_rule` reads: "points=exact,average=micro"."""
    return ",".join(f"{key}={value}" for key, value in dataclasses.asdict(rule).items())


def parse_rule(default: R, presets: Mapping[str, R], name: str) -> R:
    """Reads "points=grid,refusals=excluded", or a preset with settings behind it: "gui_owl,average=micro".

    Args:
      default: whose settings hold where none are stated.
      presets: name -> rule.
      name: what to read.

    Raises:
      ConfigError: an unknown name, setting or value.
    """
    first, *rest = (part.strip() for part in name.split(","))
    base, settings = (default, [first, *rest]) if "=" in first else (presets.get(first), rest)
    if base is None:
        raise ConfigError(f"rule {name!r}: {first!r} is none of {', '.join(presets)}")
    fields = [field.name for field in dataclasses.fields(default)]  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in fields or key in changes:
            raise ConfigError(f"rule {name!r}: {setting!r} must set one of {', '.join(fields)}, each once")
        changes[key] = value
    return dataclasses.replace(base, **changes)  # type: ignore[type-var]


def check_settings(rule: Any, **known: Collection[str]) -> None:
    """Checks fields of a rule against the values they may have.

    Raises:
      ConfigError: a field has another one.
    """
    for field, values in known.items():
        if getattr(rule, field) not in values:
            raise ConfigError(f"rule: {field} is {getattr(rule, field)!r}, must be one of {', '.join(values)}")
