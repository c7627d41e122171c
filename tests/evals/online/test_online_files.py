import json
import sqlite3
import zipfile

import pytest

from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.evals.online import files
from gui_owl_jax.evals.online.task import Unsupported


@pytest.fixture
def make(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def test_texts(make):
    a, b = make("a", "One\ttwo\n"), make("b", "one  two")
    assert files.compare_text_file(a, a) == 1 and files.compare_text_file(a, b) == 0
    assert files.compare_text_file(a, b, ignore_blanks=True) == 0
    assert files.compare_text_file(a, b, ignore_blanks=True, ignore_case=True) == 1
    assert files.diff_text_file(make("c", "1\n2\n3\n"), make("d", "1\nx\n3\n")) == pytest.approx(4 / 6)


def test_csv(make):
    a, b, c = make("a", "X,1\n y\n"), make("b", "x,1\ny\n"), make("c", "X,1\n y\n")
    assert files.compare_csv(a, c) == 1 and files.compare_csv(a, b) == 0
    assert files.compare_csv(a, b, strict=False, ignore_case=True) == 1 and files.compare_csv(a, b, strict=False) == 0
    assert files.compare_csv(a, [b, c]) == 1
    accounts = make("d", 'url,user\nimap://x,"a,b"\nsmtp://x,c\n')
    wanted = [{"url": "imap://x", "user": "a,b"}, {"url": "smtp://x"}]
    assert files.check_csv(accounts, {"expect": wanted}) == 1
    assert files.check_csv(accounts, {"expect": [{"url": "imap://x", "user": "c"}]}) == 0
    assert files.check_csv(accounts, {"unexpect": [{"user": "c"}]}) == 0
    assert files.check_csv(accounts, {"expect": wanted, "unexpect": [{"user": "d"}]}) == 1
    assert files.check_csv(accounts, {"expect": [{"colour": "red"}]}) == 0


def test_lists(make):
    listing = make("a", "COMPANY.msf\nUNIVERSITY\n")
    assert files.check_list(listing, {"expect": [r"\bCOMPANY\.msf\b", "^UNI"]}) == 1
    assert files.check_list(listing, {"expect": ["SCHOOL"]}) == 0 == files.check_list(listing, {"unexpect": ["^UNI"]})


def test_json(make):
    path = make("a", json.dumps({"tree": {"mode": "smart,all"}, "list": [{"n": 3}]}))

    def check(key, method, ref, kind="expect"):
        return files.check_json(path, {kind: [{"key": key, "method": method, "ref": ref}]})

    assert check(["tree", "mode"], "re", r"\bsmart\b") == 1 and check(["tree", "mode"], "re", "dumb") == 0
    assert check(["list", 0, "n"], "eq", 3) == 1 and check(["list", 1, "n"], "eq", 3) == 0
    assert check(["tree", "none"], "eq", 1) == 0 == check(["tree", "mode", "deeper"], "eq", 1)
    assert check(["tree", "mode"], "re", "smart", "unexpect") == 0 and check(["none"], "eq", 1, "unexpect") == 1
    with pytest.raises(Unsupported, match="YAML"):
        files.check_json(path, {}, is_yaml=True)
    with pytest.raises(files.UnreadableFile) as caught:
        files.check_json(make("b", "{"), {})
    assert caught.value.path.endswith("/b") and isinstance(caught.value, DataError)


def test_archives(tmp_path, make):
    def archive(name, **members):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            for member, content in members.items():
                file.writestr(member.replace("_", "."), content)
        return str(tmp_path / name)

    a, same, other = archive("a", x="1", y="2"), archive("b", y="2", x="1"), archive("c", x="1", y="3")
    assert files.compare_zip_files(a, same) == 1 and files.compare_zip_files(a, other) == 0
    assert files.compare_zip_files(a, archive("d", x="1")) == 0
    assert files.compare_zip_files(archive("e", a_pdf="1"), archive("f", a_pdf="1")) == 1
    with pytest.raises(Unsupported, match="PDF"):
        files.compare_zip_files(archive("g", a_pdf="1"), archive("h", a_pdf="2"))
    with pytest.raises(files.UnreadableFile):
        files.compare_zip_files(make("i", "no zip"), a)


def test_databases(tmp_path, make):
    path = str(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as base:
        base.execute("create table m (id int)")
        base.execute("insert into m values (7)")
    base.close()
    assert files.run_sqlite3(path, {"sql": "select sum(1) > 0 from m where id = 7"}) == 1
    assert files.run_sqlite3(path, {"sql": "select sum(1) > 0 from m where id = 8"}) == 0  # null
    assert files.run_sqlite3(path, {"sql": "select id from m where id = 8"}) == 0  # no row
    with pytest.raises(files.UnreadableFile):
        files.run_sqlite3(path, {"sql": "delete from m"})  # a look changes nothing
    with pytest.raises(files.UnreadableFile):
        files.run_sqlite3(make("b", "no database, but long enough to be one" * 9), {"sql": "select 1 from m"})


def test_thunderbird_preferences(make):
    lines = [
        "// comment",
        'user_pref("theme", "light");',
        'user_pref("theme", "dark-2");',
        'user_pref("sync", false);',
        'user_pref("sig", "Anonym\\nXYZ \\"Lab\\"");',
    ]
    path = make("prefs.js", "\n".join(lines))

    def check(**rules):
        return files.check_thunderbird_prefs(path, rules)

    assert check(expect={"theme": {"method": "re", "ref": "dark"}, "sync": {"method": "eq", "ref": False}}) == 1
    assert check(expect={"theme": {"method": "re", "ref": "light"}}) == 0  # it was set anew
    assert check(expect={"none": {"method": "eq", "ref": 1}}) == 0
    assert check(expect={"sig": {"method": "eq", "ref": 'Anonym\nXYZ "Lab"'}}) == 1
    assert check(unexpect={"sync": {"method": "eq", "ref": False}}) == 0
    assert check(unexpect={"sync": {"method": "eq", "ref": True}, "none": {"method": "eq", "ref": 1}}) == 1


def test_thunderbird_filters(make):
    lines = ['version="9"', 'name="a \\"b\\""', 'enabled="yes"', 'type="17"', 'action="Move to folder"']
    lines += [
        'actionValue="mailbox://x/Promotions"',
        'condition="AND (subject,contains,discount) OR (to,is,\\"x y\\")"',
    ]
    lines += ['name="second"', 'enabled="no"', 'type="17"', 'action="Forward"', 'condition="ALL"']
    path = make("rules.dat", "\n".join(lines) + "\n")

    def expect(**record):
        return files.check_thunderbird_filter(path, {"expect": [record]})

    assert expect(enabled="yes", action="Move to folder", actionValue="mailbox://x/Promotions") == 1
    assert expect(condition=["AND (subject,contains,discount)", 'OR (to,is,"x y")']) == 1 == expect(name='a "b"')
    assert expect(condition=["ALL"], enabled="no") == 1
    assert expect(condition=["ALL"], enabled="yes") == 0 == expect(name="second", actionValue="mailbox://x/Promotions")
    assert files.check_thunderbird_filter(path, {"unexpect": [{"action": "Forward"}]}) == 0


REGISTRY = """<?xml version="1.0"?><oor:items xmlns:oor="http://openoffice.org/2001/registry">
<item oor:path="/org.openoffice.Office.Writer/DefaultFont"><prop oor:name="{}"><value>Times New Roman</value></prop>
</item></oor:items>"""


def test_default_font(make):
    path = make("a.xcu", REGISTRY.format("Standard"))
    assert files.find_default_font(path, {"font_name": "Times New Roman"}) == 1
    assert files.find_default_font(path, {"font_name": "Arial"}) == 0
    assert files.find_default_font(make("b.xcu", REGISTRY.format("List")), {"font_name": "Times New Roman"}) == 0
    with pytest.raises(files.UnreadableFile):
        files.find_default_font(make("c.xcu", "<a>"), {"font_name": "Arial"})
