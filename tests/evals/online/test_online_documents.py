import zipfile

import pytest

from gui_owl_jax.evals.online import documents
from gui_owl_jax.evals.online.files import UnreadableFile

DOCX = '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>{}</w:body></w:document>'
ODT = '<o:doc xmlns:o="o" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><text:p>{}</text:p></o:doc>'


def run(text, properties=""):
    return f"<w:r><w:rPr>{properties}</w:rPr><w:t>{text}</w:t></w:r>"


def paragraph(*runs, properties=""):
    return f"<w:p><w:pPr>{properties}</w:pPr>{''.join(runs)}</w:p>"


def texts(*lines):
    return "".join(paragraph(run(line)) for line in lines)


@pytest.fixture
def make(tmp_path):
    count = 0

    def write(body, end="docx"):
        nonlocal count
        count += 1
        path = tmp_path / f"{count}.{end}"
        with zipfile.ZipFile(path, "w") as archive:
            if end == "odt":
                archive.writestr("content.xml", ODT.format(body))
            else:
                archive.writestr("word/document.xml", DOCX.format(body))
        return str(path)

    return write


def test_paragraphs(make):
    a = make(texts("One", "two  three", ""))
    same = make(paragraph(run("O"), "<w:hyperlink>" + run("ne") + "</w:hyperlink>") + texts("two  three", ""))
    compare = documents.compare_docx_files
    assert compare(a, same) == 1 == compare(a, same, ignore_blanks=False)
    spaced = make(texts("One", "two three"))
    assert compare(a, spaced) == 1 and compare(a, spaced, ignore_blanks=False) == 0
    assert compare(a, spaced, ignore_blanks=False, delete_empty_lines=True) == 0
    assert compare(a, make(texts("one", "TWO three"))) == 0
    assert compare(a, make(texts("one", "TWO three")), ignore_case=True) == 1
    assert compare(a, make(texts("two three", "One"))) == 0
    assert compare(a, make(texts("two  three", "", "One")), ignore_order=True, ignore_blanks=False) == 1
    assert compare(make(texts("abcd")), make(texts("abxx")), fuzzy_match=True) == 0.5
    assert compare(make(texts("abcd", "x")), make(texts("abxx", "x")), fuzzy_match=True, ignore_blanks=False) == 0.75
    assert compare(make(texts("abcd")), make(texts("abxx")), content_only=True) == 0.5


def test_marks_are_text_but_page_breaks_are_not(make):
    marks = make(paragraph("<w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t><w:noBreakHyphen/></w:r>"))
    page = make(paragraph('<w:r><w:t>a</w:t><w:br w:type="page"/><w:t>b</w:t></w:r>'))
    compare = documents.compare_docx_files
    assert compare(marks, make(texts("a b c-"))) == 1 and compare(page, make(texts("ab")), ignore_blanks=False) == 1
    assert documents.contains_page_break(page) == 1 == documents.contains_page_break(page, {"page_break_count": 1})
    assert documents.contains_page_break(page, {"page_break_count": 2}) == 0 == documents.contains_page_break(marks)


def test_odt(make):
    a, b = make("one <text:span>two</text:span> three", "odt"), make("one two three", "odt")
    assert documents.compare_docx_files(a, b) == 1
    assert documents.compare_docx_files(a, make("one three", "odt")) == 0
    assert documents.compare_docx_files(a, make(texts("one two three"))) == 0


def test_line_spacing(make):
    def spaced(attributes, text="x"):
        return make(paragraph(run(text), properties=f"<w:spacing {attributes}/>" if attributes else ""))

    compare = documents.compare_line_spacing
    assert compare(spaced('w:line="480"'), spaced('w:line="480" w:lineRule="auto"')) == 1
    assert compare(spaced('w:line="480"'), spaced('w:line="360"')) == 0
    assert compare(spaced('w:line="480"'), spaced('w:line="480" w:lineRule="exact"')) == 0
    assert compare(spaced('w:line="480"'), spaced('w:before="12"')) == 0 == compare(spaced(""), spaced('w:line="240"'))
    assert compare(spaced('w:line="480"'), spaced('w:line="480"', "y")) == 0


def cell(text, properties=""):
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{texts(text)}</w:tc>"


def grid(columns, *rows):
    columns = "<w:gridCol/>" * columns
    rows = "".join(f"<w:tr>{''.join(row)}</w:tr>" for row in rows)
    return f"<w:tbl><w:tblGrid>{columns}</w:tblGrid>{rows}</w:tbl>"


def test_tables(make):
    plain = grid(2, [cell("a"), cell("b ")], [cell("c"), cell("d")])
    compare = documents.compare_docx_tables
    assert compare(make(plain), make(grid(2, [cell(" a"), cell("b")], [cell("c"), cell("d")]))) == 1
    assert compare(make(plain), make(grid(2, [cell("a"), cell("b")], [cell("c"), cell("x")]))) == 0
    assert compare(make(plain), make(plain + plain)) == 0 and compare(make(texts("no table")), make("")) == 1
    wide = grid(2, [cell("a", '<w:gridSpan w:val="2"/>')], [cell("c"), cell("d")])
    assert compare(make(wide), make(grid(2, [cell("a"), cell("a")], [cell("c"), cell("d")]))) == 1
    tall = grid(2, [cell("a", '<w:vMerge w:val="restart"/>'), cell("b")], [cell("", "<w:vMerge/>"), cell("d")])
    assert compare(make(tall), make(grid(2, [cell("a"), cell("b")], [cell("a"), cell("d")]))) == 1


def test_formats(make):
    times = '<w:rFonts w:ascii="Times New Roman"/>'
    both = make(paragraph(run("a", times), run("b", times)))
    assert documents.compare_font_names(both, {"font_name": "Times New Roman"}) == 1
    assert documents.compare_font_names(both, {"font_name": "Arial"}) == 0
    some = make(paragraph(run("a", times), run("b")))
    assert documents.compare_font_names(some, {"font_name": "Times New Roman"}) == 0
    low = '<w:vertAlign w:val="subscript"/>'
    water, flat = make(paragraph(run("H"), run("2", low))), make(paragraph(run("H"), run("2")))
    assert documents.compare_subscript_contains(water, water) == 1
    assert documents.compare_subscript_contains(water, flat) == 0
    centred = make(paragraph(run("a"), properties='<w:jc w:val="center"/>') + texts("b"))
    assert documents.is_first_line_centered(centred) == 1
    assert documents.is_first_line_centered(make(texts("a"))) == 0 == documents.is_first_line_centered(make(""))


def test_damaged_documents(tmp_path, make):
    path = tmp_path / "a.docx"
    for content in (b"", b"no zip", b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(UnreadableFile):
            documents.compare_docx_files(str(path), make(texts("a")))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<w:document>")
    with pytest.raises(UnreadableFile):
        documents.contains_page_break(str(path))
