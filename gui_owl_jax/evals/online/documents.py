"""OSWorld's evaluators of Writer documents that read plainly as XML in a zip archive; scores 0 or 1.

Paragraphs, runs and tables are those of python-docx, which the release uses: direct children of the body, so that text
in tables and content controls is no paragraph. Names and rules are the release's (`metrics/docs.py`).
"""

from __future__ import annotations

import dataclasses
import re
import zipfile
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from gui_owl_jax.evals.online.files import member, reading
from gui_owl_jax.evals.online.texts import field, similarity

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_ODT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_MARKS = {f"{_W}tab": "\t", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-", f"{_W}ptab": "\t"}


@dataclasses.dataclass(frozen=True, eq=False)
class _Paragraph:
    element: Element

    @property
    def runs(self) -> list[Element]:
        return self.element.findall(f"{_W}r")

    @property
    def text(self) -> str:
        inner = [part for part in self.element if part.tag in (f"{_W}r", f"{_W}hyperlink")]
        runs = [run for part in inner for run in ([part] if part.tag == f"{_W}r" else part.findall(f"{_W}r"))]
        return "".join(_mark_text(mark) for run in runs for mark in run)

    def prop(self, name: str) -> Element | None:
        return self.element.find(f"{_W}pPr/{_W}{name}")

    @property
    def spacing(self) -> tuple[str, float] | None:
        """("lines", how many) or ("points", how high), None where the style decides."""
        spacing = self.prop("spacing")
        line = None if spacing is None else spacing.get(f"{_W}line")
        if spacing is None or line is None:
            return None
        if spacing.get(f"{_W}lineRule", "auto") == "auto":
            return "lines", float(line) / 240
        return "points", float(line) / 20


def _mark_text(mark: Element) -> str:
    if mark.tag == f"{_W}t":
        return mark.text or ""
    if mark.tag == f"{_W}br":  # breaks of pages and columns are no text
        return "\n" if mark.get(f"{_W}type", "textWrapping") == "textWrapping" else ""
    return _MARKS.get(mark.tag, "")


def _body(path: str) -> Element:
    with reading(path), zipfile.ZipFile(path) as archive:
        body = ElementTree.fromstring(member(archive, "word/document.xml")).find(f"{_W}body")
        if body is None:
            raise ValueError("word/document.xml has no body")
        return body


def _paragraphs(path: str) -> list[_Paragraph]:
    return [_Paragraph(element) for element in _body(path).findall(f"{_W}p")]


def _odt_texts(path: str) -> list[str]:
    """Text of each paragraph: its own and that of its direct spans, wherever the paragraph stands."""
    with reading(path), zipfile.ZipFile(path) as archive:
        root = ElementTree.fromstring(member(archive, "content.xml"))

    def text(paragraph: Element) -> Iterator[str]:
        yield paragraph.text or ""
        for child in paragraph:
            if child.tag == f"{_ODT}span":
                yield (child.text or "") + "".join(inner.tail or "" for inner in child)
            yield child.tail or ""

    return ["".join(text(paragraph)) for paragraph in root.iter(f"{_ODT}p")]


def _texts(path: str) -> list[str]:
    return _odt_texts(path) if path.endswith(".odt") else [paragraph.text for paragraph in _paragraphs(path)]


def compare_docx_files(
    result: str,
    expected: str,
    *,
    ignore_blanks: bool = True,
    ignore_case: bool = False,
    ignore_order: bool = False,
    content_only: bool = False,
    fuzzy_match: bool = False,
    delete_empty_lines: bool = False,
) -> float:
    """Two documents (both .docx or both .odt) have the same paragraphs.

    Args:
      result: the agent's document.
      expected: the right one.
      ignore_blanks: compare all text at once, with runs of blanks and line ends as one blank.
      ignore_case: in lower case.
      ignore_order: paragraphs sorted.
      content_only: similarity of all text, 0 to 1 (`texts.similarity`).
      fuzzy_match: likewise; without `ignore_blanks` the mean over paragraphs.
      delete_empty_lines: leave empty paragraphs out.
    """
    ends = {path.rsplit(".", 1)[-1] for path in (result, expected)}
    if ends not in ({"docx"}, {"odt"}):
        return 0.0
    sides = []
    for path in (result, expected):
        texts = sorted(_texts(path)) if ignore_order else _texts(path)
        texts = [text for text in texts if text.strip() or not delete_empty_lines]
        sides.append([text.lower() for text in texts] if ignore_case else texts)
    if ignore_blanks or content_only:
        first, second = (re.sub(r"\s+", " ", "\n".join(texts)).strip() for texts in sides)
        return similarity(first, second) if fuzzy_match or content_only else float(first == second)
    first_texts, second_texts = sides
    if len(first_texts) != len(second_texts):
        return 0.0
    if fuzzy_match:
        scores = [similarity(a, b) for a, b in zip(first_texts, second_texts)]
        return sum(scores) / len(scores) if scores else 1.0
    return float(first_texts == second_texts)


def compare_line_spacing(result: str, expected: str) -> float:
    """Two documents have the same text, and paragraph by paragraph the same line spacing."""
    if not compare_docx_files(result, expected):
        return 0.0
    first, second = ([paragraph.spacing for paragraph in _paragraphs(path)] for path in (result, expected))
    return float(first == second)


def compare_docx_tables(result: str, expected: str) -> float:
    """Two documents have the same tables, cell by cell, blanks around the text aside."""
    first, second = ([_grid(table) for table in _body(path).findall(f"{_W}tbl")] for path in (result, expected))
    return float(first == second)


def _grid(table: Element) -> tuple[int, list[list[str]]]:
    """The number of columns, and the text of each cell; a merged cell fills all the places it covers."""
    rows: list[list[str]] = []
    for row in table.findall(f"{_W}tr"):
        cells: list[str] = []
        for cell in row.findall(f"{_W}tc"):
            span, merge = cell.find(f"{_W}tcPr/{_W}gridSpan"), cell.find(f"{_W}tcPr/{_W}vMerge")
            text = "\n".join(_Paragraph(element).text for element in cell.findall(f"{_W}p")).strip()
            goes_on = merge is not None and merge.get(f"{_W}val", "continue") == "continue"
            if goes_on and rows and len(cells) < len(rows[-1]):
                text = rows[-1][len(cells)]
            cells += [text] * (int(span.get(f"{_W}val", "1")) if span is not None else 1)
        rows.append(cells)
    return len(table.findall(f"{_W}tblGrid/{_W}gridCol")), rows


def contains_page_break(result: str, rules: object = None) -> float:
    """The paragraphs hold page breaks, and as many as "page_break_count" says if it is given."""
    runs = [run for paragraph in _paragraphs(result) for run in paragraph.runs]
    count = sum(mark.get(f"{_W}type") == "page" for run in runs for mark in run.iter(f"{_W}br"))
    wanted = rules.get("page_break_count") if isinstance(rules, dict) else None
    return float(count > 0 and wanted in (None, count))


def compare_font_names(result: str, rules: object) -> float:
    """Every run of every paragraph is set in the font "font_name"."""
    fonts = {_run_font(run) for paragraph in _paragraphs(result) for run in paragraph.runs}
    return float(fonts <= {field(rules, "font_name", str)})


def _run_font(run: Element) -> str | None:
    fonts = run.find(f"{_W}rPr/{_W}rFonts")
    return None if fonts is None else fonts.get(f"{_W}ascii")


def compare_subscript_contains(result: str, expected: str) -> float:
    """Some run is subscript in both documents, counted in paragraph and run."""
    pairs = zip(_paragraphs(result), _paragraphs(expected))
    return float(any(_is_subscript(a) and _is_subscript(b) for p, q in pairs for a, b in zip(p.runs, q.runs)))


def _is_subscript(run: Element) -> bool:
    align = run.find(f"{_W}rPr/{_W}vertAlign")
    return align is not None and align.get(f"{_W}val") == "subscript"


def is_first_line_centered(result: str) -> float:
    """The first paragraph is centred by its own format."""
    paragraphs = _paragraphs(result)
    align = paragraphs[0].prop("jc") if paragraphs else None
    return float(align is not None and align.get(f"{_W}val") == "center")
