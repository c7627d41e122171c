"""Templates of the desktop apps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from envs.virtual.apps import files, sheet
from envs.virtual.hand import Hand
from envs.virtual.lexicon import CELL_MENU, EDIT_MENU, FILE_MENU, NUMBERS, SHORT
from envs.virtual.template import Moment, Move, Params, Template, content_is


def _opened(p: Params, first: files.State, now: Moment) -> bool:
    return now.state.opened == p["file"] and content_is(files.APP, first, now.state)


def _moved(p: Params, first: files.State, now: Moment) -> bool:
    return content_is(files.APP, first, now.state, items=files.moved(first.items, [p["file"]], p["folder"]))


def _selected(p: Params, first: files.State, now: Moment) -> bool:
    return now.state.selected == (p["file"],)


def _deleted(p: Params, first: files.State, now: Moment) -> bool:
    return content_is(files.APP, first, now.state, items=files.without(first.items, [p["file"]]))


def _menu_open(p: Params, first: files.State, now: Moment) -> bool:
    return now.state.menu == p["menu"]


def _commanded(p: Params, first: files.State, now: Moment) -> bool:
    return content_is(files.APP, first, now.state, commands=(p["entry"],))


def _open_file(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.double_click(f"item:{p['file']}")


def _move_file(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.point(f"item:{p['file']}")
    yield hand.drag(p["file"], onto=f"item:{p['folder']}")


def _delete_file(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.click(f"item:{p['file']}")
    yield hand.press("delete")


def _run_menu(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.click(f"menu:{p['menu']}")
    yield hand.click(f"entry:{p['entry']}")


def _focused(p: Params, first: sheet.State, now: Moment) -> bool:
    return now.state.focus == p["cell"]


def _scrolled(p: Params, first: sheet.State, now: Moment) -> bool:
    return now.state.scroll > 0


def _on_b(p: Params, first: sheet.State, now: Moment) -> bool:
    return now.state.sheet == 1


def _context_open(p: Params, first: sheet.State, now: Moment) -> bool:
    return now.state.context == p["cell"]


def _set(p: Params, first: sheet.State, now: Moment) -> bool:
    return content_is(sheet.APP, first, now.state, sheets=sheet.edited(first, 0, p["cell"], value=p["number"]))


def _copied(p: Params, first: sheet.State, now: Moment) -> bool:
    value = first.cell(0, p["source"]).value
    return content_is(sheet.APP, first, now.state, sheets=sheet.edited(first, 0, p["cell"], value=value))


def _carried(p: Params, first: sheet.State, now: Moment) -> bool:
    value = first.cell(0, p["source"]).value
    return content_is(sheet.APP, first, now.state, sheets=sheet.edited(first, 1, p["cell"], value=value))


def _styled(p: Params, first: sheet.State, now: Moment) -> bool:
    return content_is(sheet.APP, first, now.state, sheets=sheet.edited(first, 0, p["cell"], styles=(p["style"],)))


def _set_cell(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.click(f"cell:{p['cell']}")
    yield hand.type(p["number"])


def _scroll_set(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.scroll_down()
    yield from _set_cell(p, hand)


def _copy_cell(p: Params, hand: Hand) -> Iterator[Move]:
    number = hand.state.cell(0, p["source"]).value
    yield hand.click(f"cell:{p['cell']}", note=f"Read {number}.")
    yield hand.type(number)


def _carry_cell(p: Params, hand: Hand) -> Iterator[Move]:
    number = hand.state.cell(0, p["source"]).value
    yield hand.click("sheet:B", note=f"Read {number}.")
    yield hand.click(f"cell:{p['cell']}")
    yield hand.type(number)


def _style_cell(p: Params, hand: Hand) -> Iterator[Move]:
    yield hand.right_click(f"cell:{p['cell']}")
    yield hand.click(f"entry:{p['style']}")


def _differ(p: Params) -> bool:
    return p["source"] != p["cell"]


_SET = Template(
    name="sheet.set_cell",
    app=sheet.APP,
    instruction="Set {cell} to {number}.",
    choices={"cell": SHORT, "number": NUMBERS},
    start=lambda p, rng: sheet.start(rng, above={0: [p["cell"]]}, unused=p["number"]),
    milestones=(_focused,),
    goal=_set,
    script=_set_cell,
    length=2,
)

TEMPLATES = (
    Template(
        name="files.open_file",
        app=files.APP,
        instruction="Open {file}.",
        choices={"file": SHORT},
        start=lambda p, rng: files.start(rng, files=[p["file"]]),
        goal=_opened,
        script=_open_file,
        length=1,
    ),
    Template(
        name="files.move_file",
        app=files.APP,
        instruction="Move {file} to {folder}.",
        choices={"file": SHORT, "folder": SHORT},
        allowed=lambda p: p["file"] != p["folder"],
        start=lambda p, rng: files.start(rng, files=[p["file"]], folders=[p["folder"]]),
        goal=_moved,
        script=_move_file,
        length=2,
    ),
    Template(
        name="files.delete_file",
        app=files.APP,
        instruction="Delete {file}.",
        choices={"file": SHORT},
        start=lambda p, rng: files.start(rng, files=[p["file"]]),
        milestones=(_selected,),
        goal=_deleted,
        script=_delete_file,
        length=2,
    ),
    Template(
        name="files.run_menu",
        app=files.APP,
        instruction="Choose {entry} in menu {menu}.",
        choices={"menu": ("File", "Edit"), "entry": FILE_MENU + EDIT_MENU},
        allowed=lambda p: (p["entry"] in FILE_MENU) == (p["menu"] == "File"),
        start=lambda p, rng: files.start(rng),
        milestones=(_menu_open,),
        goal=_commanded,
        script=_run_menu,
        length=2,
    ),
    _SET,
    dataclasses.replace(
        _SET,
        name="sheet.scroll_set",
        start=lambda p, rng: sheet.start(rng, below={0: [p["cell"]]}, unused=p["number"]),
        milestones=(_scrolled, _focused),
        script=_scroll_set,
        length=3,
    ),
    Template(
        name="sheet.copy_cell",
        app=sheet.APP,
        instruction="Copy {source} to {cell}.",
        choices={"source": SHORT, "cell": SHORT},
        allowed=_differ,
        start=lambda p, rng: sheet.start(rng, above={0: [p["source"], p["cell"]]}),
        milestones=(_focused,),
        goal=_copied,
        script=_copy_cell,
        length=2,
    ),
    Template(
        name="sheet.carry_cell",
        app=sheet.APP,
        instruction="Copy {source} to {cell} on sheet B.",
        choices={"source": SHORT, "cell": SHORT},
        allowed=_differ,
        start=lambda p, rng: sheet.start(rng, above={0: [p["source"]], 1: [p["cell"]]}),
        milestones=(_on_b, _focused),
        goal=_carried,
        script=_carry_cell,
        length=3,
    ),
    Template(
        name="sheet.style_cell",
        app=sheet.APP,
        instruction="Apply {style} to {cell}.",
        choices={"style": CELL_MENU, "cell": SHORT},
        start=lambda p, rng: sheet.start(rng, above={0: [p["cell"]]}),
        milestones=(_context_open,),
        goal=_styled,
        script=_style_cell,
        length=2,
    ),
)
