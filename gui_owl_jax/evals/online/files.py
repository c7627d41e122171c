"""OSWorld's evaluators of files, with the standard library: text, CSV, JSON, zip, SQLite, settings of programs.

Names and rules are those of the release (`desktop_env/evaluators/metrics`). Arguments are paths. A file that cannot be
read as what it should be is an `UnreadableFile`: the caller knows whether the agent or the benchmark made it.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import json
import re
import sqlite3
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.online.task import Unsupported
from gui_owl_jax.evals.online.texts import field, matches_rule

MAX_MEMBER = 64 * 2**20  # bytes that one member of an archive may unpack to

_REGISTRY = "{http://openoffice.org/2001/registry}"
_PREFERENCE = re.compile(r'user_pref\("((?:[^"\\]|\\.)+)", (.+)\);')
_CONDITION = re.compile(r"""\b(?:AND|OR) \([\w ]+,[\w ']+,(?:"(?:[^"]|")+"|[^)]+)\)|\bALL\b""")


class UnreadableFile(DataError):
    """A file is not what its evaluator reads.

    Attributes:
      path: the file.
    """

    def __init__(self, path: str, error: Exception):
        super().__init__(f"{path}: {error}")
        self.path = path


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns what the standard library raises on a damaged file into `UnreadableFile`."""
    try:
        yield
    except (OSError, ValueError, KeyError, EOFError, csv.Error, sqlite3.Error, NotImplementedError) as error:
        raise UnreadableFile(path, error) from error
    except (zipfile.BadZipFile, ElementTree.ParseError, RuntimeError) as error:  # RuntimeError: an encrypted member
        raise UnreadableFile(path, error) from error


def read_text(path: str) -> str:
    """A text file in UTF-8."""
    with reading(path):
        return Path(path).read_text("utf-8")


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """One member of a zip archive; raises ValueError when it is too large to be honest."""
    if archive.getinfo(name).file_size > MAX_MEMBER:
        raise ValueError(f"member {name!r} is larger than {MAX_MEMBER} bytes")
    return archive.read(name)


def compare_text_file(result: str, expected: str, *, ignore_blanks: bool = False, ignore_case: bool = False) -> float:
    """Two texts are equal; runs of blanks and line ends count as one blank with `ignore_blanks`."""
    first, second = read_text(result), read_text(expected)
    if ignore_blanks:
        first, second = (re.sub(r"\s+", " ", re.sub(r"[\t\n]", " ", text).strip()) for text in (first, second))
    if ignore_case:
        first, second = first.lower(), second.lower()
    return float(first == second)


def diff_text_file(result: str, expected: str) -> float:
    """`difflib`'s ratio of two texts line by line: 2 * equal lines / all lines."""
    lines = read_text(result).splitlines(), read_text(expected).splitlines()
    return difflib.SequenceMatcher(a=lines[0], b=lines[1]).ratio()


def compare_csv(result: str, expected: str | list[str], *, strict: bool = True, ignore_case: bool = False) -> float:
    """The lines equal those of the expected file, or of one of several; line by line stripped unless `strict`."""

    def lines(path: str) -> list[str]:
        found = read_text(path).splitlines()
        found = found if strict else [line.strip() for line in found]
        return [line.lower() for line in found] if ignore_case else found

    wanted = [expected] if isinstance(expected, str) else expected
    return float(any(lines(result) == lines(path) for path in wanted))


def check_csv(result: str, rules: object) -> float:
    """Some row has all values of each record of "expect", no row those of one of "unexpect"; keys are column names."""
    with reading(result):
        rows = list(csv.DictReader(read_text(result).splitlines()))
    return _records(rows, rules)


def check_list(result: str, rules: object) -> float:
    """Some line matches each pattern (regular expression) of "expect", no line one of "unexpect"."""
    lines = read_text(result).splitlines()

    def occurs(pattern: str) -> bool:
        return any(re.search(pattern, line) for line in lines)

    expect, unexpect = (field(rules, name, list, default=[]) for name in ("expect", "unexpect"))
    return float(all(map(occurs, expect)) and not any(map(occurs, unexpect)))


def check_json(result: str, rules: object, *, is_yaml: bool = False) -> float:
    """Values of a JSON file by their path of keys: those of "expect" are there and match, "unexpect" do not match.

    A value that is missing or of the wrong type matches nothing. (In the release it then fails "unexpect" too where the
    method cannot compare it, by an exception that is swallowed.)
    """
    if is_yaml:
        raise Unsupported("osworld.check_json", "YAML needs a package that is not installed")
    with reading(result):
        data = json.loads(read_text(result))

    def holds(rule: object) -> bool:
        value: Any = data
        for key in field(rule, "key", list):
            try:
                value = value[key]
            except (KeyError, TypeError, IndexError):
                return False
        return matches_rule(value, rule)

    expect, unexpect = (field(rules, name, list, default=[]) for name in ("expect", "unexpect"))
    return float(all(map(holds, expect)) and not any(map(holds, unexpect)))


def compare_zip_files(result: str, expected: str) -> float:
    """Two archives have the same members with the same bytes (the release forgives PDF members that read alike)."""
    with reading(result), zipfile.ZipFile(result) as first:
        found = {name: member(first, name) for name in first.namelist()}
    with reading(expected), zipfile.ZipFile(expected) as second:
        wanted = {name: member(second, name) for name in second.namelist()}
    if set(found) != set(wanted):
        return 0.0
    unequal = [name for name in found if found[name] != wanted[name]]
    if unequal and all(name.lower().endswith(".pdf") for name in unequal):
        raise Unsupported("osworld.compare_zip_files", f"{unequal[0]!r} must be compared as PDF")
    return float(not unequal)


def run_sqlite3(result: str, rules: object) -> float:
    """The first value that the query "sql" finds in a database, 0 for null."""
    query = field(rules, "sql", str)
    with reading(result), contextlib.closing(sqlite3.connect(f"{Path(result).as_uri()}?mode=ro", uri=True)) as base:
        row = base.execute(query).fetchone()
        return float((row or [0])[0] or 0)


def find_default_font(result: str, rules: object) -> float:
    """LibreOffice Writer's settings (registrymodifications.xcu) name this standard font."""
    with reading(result):
        root = ElementTree.fromstring(Path(result).read_bytes())
    fonts = [
        value.text
        for item in root.iter("item")
        if item.get(f"{_REGISTRY}path") == "/org.openoffice.Office.Writer/DefaultFont"
        for prop in item.iter("prop")
        if prop.get(f"{_REGISTRY}name") == "Standard"
        for value in prop.findall("value")
    ]
    return float(bool(fonts) and fonts[-1] == field(rules, "font_name", str))


def check_thunderbird_prefs(result: str, rules: object) -> float:
    """Preferences of a prefs.js: those of "expect" are set and match their rules, "unexpect" do not match.

    Where a preference is set several times, the last one counts for "expect".
    """
    expect, unexpect = (field(rules, name, dict, default={}) for name in ("expect", "unexpect"))
    holds = dict.fromkeys(expect, False)
    for line in read_text(result).splitlines():
        found = _PREFERENCE.fullmatch(line.strip())
        if found is None:
            continue
        name = found[1]
        with reading(result):
            value = json.loads(found[2])
        if name in expect:
            holds[name] = matches_rule(value, expect[name])
        elif name in unexpect and matches_rule(value, unexpect[name]):
            return 0.0
    return float(all(holds.values()))


def check_thunderbird_filter(result: str, rules: object) -> float:
    """Mail filters of a msgFilterRules.dat: one has all values of each record of "expect", none those of "unexpect"."""
    filters: list[dict[str, object]] = []
    current: dict[str, object] = {}
    for line in read_text(result).splitlines():
        name, _, quoted = line.partition("=")
        value = quoted[1:-1].replace('\\"', '"').replace("\\\\", "\\")
        if name == "name":
            current = {"name": value}
        elif name in ("enabled", "type", "action", "actionValue"):
            current[name] = value
        elif name == "condition":  # it ends a filter
            filters.append({**current, "condition": _CONDITION.findall(value)})
    return _records(filters, rules)


def _records(rows: list[Any], rules: object) -> float:
    def occurs(record: Mapping[str, object]) -> bool:
        return any(all(name in row and row[name] == value for name, value in record.items()) for row in rows)

    expect, unexpect = (field(rules, name, list, default=[]) for name in ("expect", "unexpect"))
    return float(all(map(occurs, expect)) and not any(map(occurs, unexpect)))
