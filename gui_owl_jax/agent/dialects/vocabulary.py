"""Tables that map the actions of a dialect onto those of a device family, both ways.

A dialect states a list of `Rule`s for each family it can act on. Reading takes the first rule that has the call's name
and whose conditions hold; writing takes the first rule whose call reads back as the same action. What no rule says is
a `ParseError`: nothing is left out on the way and nothing is made up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gui_owl_jax.agent.actions import Action, ToolCall, action_from_call
from gui_owl_jax.agent.devices import ACTION_TABLE, DeviceFamily, tool_name
from gui_owl_jax.agent.dialects.grid import Grid, number, pair, swiped
from gui_owl_jax.agent.errors import ParseError, ParseReason

POINTS = ("coordinate", "coordinate2")


@dataclasses.dataclass(frozen=True)
class Rule:
    """One way to say one action.

    Attributes:
      name: what the dialect calls the action.
      kind: the family's kind, "" for an action that the family has no counterpart of.
      arguments: argument of the dialect -> field of `Action`.
      when: argument -> values of which it must have one for the rule to hold, the first is written; an argument that
        is absent counts as "".
      fixed: fields that follow from the name and from `when`.
      defaults: fields that may be left out, and what they are then; None for nothing.
      ignored: arguments that may be given although the family has no place for them.
      finger: direction in which a finger swipes, from `coordinate` if there is one (see `grid.swiped`).
      type_only: the dialect can name this action but has no place for its arguments: the `Action` has none either, fit
        to be compared with a label by its kind, not to be executed.
      note: what the action does, for the prompt; without one the family's own description. Where `kind` is "", why.
    """

    name: str
    kind: str
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
    when: Mapping[str, tuple[object, ...]] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, object] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, object] = dataclasses.field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    finger: str = ""
    type_only: bool = False
    note: str = ""


def _as_it_is(value: object) -> object:
    return value


@dataclasses.dataclass(frozen=True)
class Style:
    """How a dialect writes the values of arguments.

    Attributes:
      read_point: a point's two numbers, from what was written; raises ParseError (BAD_ARGUMENT).
      write_point: what is written, from the two numbers.
      read_keys: key names from what was written.
      write_keys: what is written, from key names.
      pixels: how many of our pixels one unit of scrolling is.
    """

    read_point: Callable[[object], tuple[object, object]] = pair
    write_point: Callable[[float, float], object] = lambda x, y: [x, y]
    read_keys: Callable[[object], object] = _as_it_is
    write_keys: Callable[[tuple[str, ...]], object] = list
    pixels: int = 1


def read_action(rules: Sequence[Rule], call: ToolCall, family: DeviceFamily, style: Style, grid: Grid) -> Action:
    """The action of the family that a call of the dialect means.

    Raises:
      ParseError: it means none (see `ParseReason`).
    """
    arguments = {name: value for name, value in call.arguments.items() if value is not None}
    rule = _rule_for(rules, call.name, arguments)
    if not rule.kind:
        raise ParseError(ParseReason.UNKNOWN_ACTION, f"{call.name} has no counterpart on {family}: {rule.note}")
    known = {*rule.arguments, *rule.when, *rule.ignored}
    if unknown := [name for name in arguments if name not in known]:
        raise ParseError(ParseReason.UNKNOWN_ARGUMENT, f"{call.name} does not take {unknown!s:.200}")
    if rule.type_only:
        return Action(rule.kind)
    fields: dict[str, Any] = {**rule.defaults, **rule.fixed}
    for name, field in rule.arguments.items():
        if name in arguments:
            fields[field] = _read_field(field, arguments[name], style, grid)
        elif field not in fields:
            raise ParseError(ParseReason.MISSING_ARGUMENT, f"{call.name} needs {name}")
    if rule.finger:
        fields["coordinate"], fields["coordinate2"] = swiped(fields.get("coordinate"), rule.finger)
    return action_from_call(family, ToolCall(tool_name(family), {"action": rule.kind, **fields}))


def write_action(rules: Sequence[Rule], action: Action, family: DeviceFamily, style: Style, grid: Grid) -> ToolCall:
    """The call of the dialect that means an action.

    Raises:
      ParseError: UNKNOWN_ACTION, no call means exactly this action (points may move to the next one of the grid).
    """
    for call in _candidates(rules, action, style, grid):
        try:
            if same_action(read_action(rules, call, family, style, grid), action, grid):
                return call
        except ParseError:
            continue
    raise ParseError(ParseReason.UNKNOWN_ACTION, f"nothing on {family} says {_told(action)}")


def same_action(one: Action, other: Action, grid: Grid) -> bool:
    """Whether two actions are equal but for the rounding of their points."""
    rest = [dataclasses.replace(action, coordinate=None, coordinate2=None) for action in (one, other)]
    return rest[0] == rest[1] and all(grid.near(getattr(one, name), getattr(other, name)) for name in POINTS)


def own_rules(family: DeviceFamily, without: Sequence[str] = ()) -> tuple[Rule, ...]:
    """Rules that say the family's actions as its own table does, for dialects of the same names."""
    return tuple(
        Rule(kind, kind, {name: name for name in spec.arguments}, defaults={name: None for name in spec.optional})
        for kind, spec in ACTION_TABLE[family].items()
        if kind not in without
    )


def described(rule: Rule, family: DeviceFamily) -> str:
    """What an action does, for the prompt."""
    if rule.note:
        return rule.note
    match rule.fixed, rule.defaults:
        case {"status": status}, _:
            return f"End the task and report {status}."
        case {"button": button}, _:
            return f"Press the button {button} of the system."
        case _, {"time": float(seconds)}:
            return f"{'Wait' if rule.kind == 'wait' else 'Press the point and hold it for'} {seconds:g} seconds."
    return ACTION_TABLE[family][rule.kind].description


def _rule_for(rules: Sequence[Rule], name: str, arguments: Mapping[str, object]) -> Rule:
    named = [rule for rule in rules if rule.name == name]
    if not named:
        names = ", ".join(dict.fromkeys(rule.name for rule in rules if rule.kind))
        raise ParseError(ParseReason.UNKNOWN_ACTION, f"{name!r:.80} is none of {names}")
    for rule in named:
        if all(arguments.get(key, "") in values for key, values in rule.when.items()):
            return rule
    for key in named[-1].when:
        choices = [rule.when[key][0] for rule in named if key in rule.when]
        if key not in arguments:
            raise ParseError(ParseReason.MISSING_ARGUMENT, f"{name} needs {key}, one of {choices}")
        if not any(arguments[key] in rule.when.get(key, ()) for rule in named):
            raise ParseError(
                ParseReason.BAD_ARGUMENT, f"{name}.{key} is {arguments[key]!r:.80}, must be one of {choices}"
            )
    raise ParseError(ParseReason.BAD_ARGUMENT, f"{name} does not go with {dict(arguments)!s:.200}")


def _read_field(field: str, value: object, style: Style, grid: Grid) -> object:
    if field in POINTS:
        return grid.read(*style.read_point(value))
    if field == "pixels":
        return number(field, value) * style.pixels
    return style.read_keys(value) if field == "keys" else value


def call_of(rule: Rule, fields: Mapping[str, object], style: Style) -> ToolCall:
    """The call that a rule makes of fields, points in the dialect's own numbers; absent fields are left out."""
    arguments = {
        name: _write_field(field, fields[field], style) for name, field in rule.arguments.items() if field in fields
    }
    return ToolCall(rule.name, {**arguments, **{name: values[0] for name, values in rule.when.items()}})


def _candidates(rules: Sequence[Rule], action: Action, style: Style, grid: Grid) -> Iterator[ToolCall]:
    fields = {name: value for name, value in dataclasses.asdict(action).items() if value is not None}
    points = {name: grid.write(fields[name]) for name in POINTS if name in fields}
    for rule in rules:
        if rule.kind == action.kind and all(fields.get(name) == value for name, value in rule.fixed.items()):
            said = {name: value for name, value in fields.items() if value != rule.defaults.get(name)}
            yield call_of(rule, {**said, **points}, style)


def _write_field(field: str, value: Any, style: Style) -> object:
    if field in POINTS:
        return style.write_point(*(_plain(part) for part in value))
    if field == "keys":
        return style.write_keys(value)
    return _plain(value / style.pixels if field == "pixels" else value)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _told(action: Action) -> str:
    fields = {name: value for name, value in dataclasses.asdict(action).items() if value is not None}
    return f"{fields.pop('kind')}({', '.join(f'{name}={value!r:.80}' for name, value in fields.items())})"
