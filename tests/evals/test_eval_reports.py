"""Results for people: tables of every kind, Markdown, HTML that cannot be broken into, comparisons."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from polykv.cli import run
from polykv.evals.compare import compare
from polykv.evals.pictures import pictures
from polykv.evals.report import html, markdown
from polykv.evals.result import Result, Verdict
from polykv.evals.tables import tables

HOSTILE = '<script>alert("x")</script>|\n# not a title'


def kld(name: str = "a model", kld: float = 0.02) -> Result:
    quantiles = {"p50": 0.01, "p99": 0.2}
    figures = {"kld": kld, "kld_error": 0.001, "kld_quantiles": quantiles, "kld_p99": 0.2, "kld_max": 0.9}
    rest = {"bits": 5.9, "bits_held": 6.0, "same_top": 0.9, "delta_p": -0.01, "ln_ppl_ratio": 0.02}
    depth = [{"from": 1, "to": 8, "kld": 0.01}, {"from": 9, "to": 16, "kld": 0.03}]
    window = {"corpus": name, "windows": 2, "ctx": 16, "positions": 14, "decode": False}
    settings = {**window, "base": "f16", "base_ppl": 9.0}
    cell = {"kv": "q8_0/turbo3", **figures, **rest, "ln_ppl_ratio_error": 0.003, "by_depth": depth}
    return Result("kld", {"model": {"name": name}, "commit": "abc"}, settings, [cell], Verdict.OK, [])


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        active = [k for k, _ in attrs if k.startswith("on") or k in ("src", "href")]
        assert not active or tag in ("use", "g"), (tag, attrs)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_html_stands_alone_and_escapes_what_strangers_wrote() -> None:
    result = kld(HOSTILE).judge([], [HOSTILE])
    page = html(result)
    tags = Tags()
    tags.feed(page)
    assert "script" not in tags.tags and "link" not in tags.tags and "img" not in tags.tags
    assert any('alert("x")' in t for t in tags.text)
    assert "http" not in page.replace("http://www.w3.org", "")
    assert json.loads(next(t for t in tags.text if t.startswith("{"))) == result.to_json()


def test_pictures_are_drawn_and_repeat() -> None:
    drawn, missing = pictures(kld())
    assert [name for name, _ in drawn] == ["Divergence against bits", "Divergence by depth"] and not missing
    assert all(svg.startswith("<svg") and "q8_0/turbo3" in svg for _, svg in drawn)
    assert pictures(kld()) == (drawn, missing)


def test_without_matplotlib_a_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    drawn, missing = pictures(kld())
    assert not drawn and "matplotlib" in missing and missing in unescape(html(kld()))


def test_markdown_keeps_its_shape() -> None:
    text = markdown(kld(HOSTILE))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1
    assert "<script>" not in text and sum(line.startswith("# ") for line in text.splitlines()) == 1


def test_an_unknown_kind_shows_its_figures() -> None:
    (table,) = tables(Result("new", {}, {}, [{"kv": "f16", "score": 0.5, "list": [1]}, {"kv": "q8_0", "score": None}]))
    assert table.columns == ["kv", "score"] and table.rows == [["f16", "0.5"], ["q8_0", "-"]]


def test_compare_shows_what_differs() -> None:
    table, notes = compare(kld(), kld(kld=0.03))
    assert table.rows == [["q8_0/turbo3", "kld", "0.02", "0.03", "+50.00%"]] and not notes
    other = kld("another").judge(["void"], [])
    other.cells[0]["kv"] = "turbo3"
    table, notes = compare(kld(), other)
    assert not table.rows
    assert any("only in the first: q8_0/turbo3" in n for n in notes) and any("only in the second" in n for n in notes)
    assert any("settings corpus" in n for n in notes) and any("stamp model" in n for n in notes)
    assert "verdicts: ok, invalid" in notes


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    kld().save(a)
    kld(kld=0.03).save(b)
    files = ["--html", str(tmp_path / "a.html"), "--markdown", str(tmp_path / "a.md")]
    assert run(["eval", "report", str(a), *files]) == 0
    assert "verdict: ok" in capsys.readouterr().out
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>") and (tmp_path / "a.md").read_text()
    assert run(["eval", "compare", str(a), str(b), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["differences"][0]["change"] == "+50.00%"
    Result("ppl", {}, {}, []).save(b)
    assert run(["eval", "compare", str(a), str(b)]) == 2
    assert run(["eval", "report", str(tmp_path / "none.json")]) == 2
    assert run(["eval", "report", str(a), "--html", "/no/such/folder/x.html"]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["![x](http://far/i.png)", "[x](http://far)", "a\\|b", "`x", "# x", "\x1b[31m"])
def test_names_are_no_markup_in_markdown(name: str) -> None:
    """Images are fetched when a report is looked at, escapes drive the terminal in which it is."""
    # What a backslash stands before is no markup.
    text = re.sub(r"\\.", "", markdown(kld(name)))
    assert "[" not in text and "`" not in text and "\x1b" not in text and "\x1b" not in html(kld(name))
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_a_name_is_no_formula_in_a_picture() -> None:
    result = kld()
    result.cells[0]["kv"] = "$\\frac{$"
    drawn, _ = pictures(result)
    assert all("$\\frac{$" in svg for _, svg in drawn)


def test_figures_that_are_no_numbers_are_shown_as_such() -> None:
    """They become null in JSON; a report of that must not fail, nor draw them."""
    result = kld(kld=float("nan"))
    result.cells[0]["kld_quantiles"]["p50"] = float("inf")
    result.settings["base_ppl"] = float("inf")
    again = Result.from_json(result.to_json())
    (table,) = tables(again)
    assert table.rows[0][3:5] == ["- ± 0.00100", "-"] and "perplexity -" in table.title
    assert html(again) and pictures(again)[0] == []


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("cells", 0, "kv"), None),
        (("cells", 0, "bits"), "many"),
        (("cells", 0, "kld_quantiles"), None),
        (("cells", 0, "by_depth"), [1]),
        (("settings", "ctx"), {}),
        (("settings", "decode"), None),
        (("cells", 0, "kld"), 10**400),
    ],
)
def test_edited_results_are_refused_not_crashed_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: tuple[str | int, ...], value: object
) -> None:
    path, good = tmp_path / "x.json", tmp_path / "good.json"
    kld().save(good)
    result = kld().to_json()
    inner: Any = result
    for key in where[:-1]:
        inner = inner[key]
    if value is None:
        del inner[where[-1]]
    else:
        inner[where[-1]] = value
    path.write_text(json.dumps(result))
    assert run(["eval", "report", str(path), "--html", str(tmp_path / "x.html")]) in (0, 2)
    assert run(["eval", "compare", str(path), str(good)]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_compare_says_what_one_lacks_and_what_is_void() -> None:
    a, b = kld().judge(["control failed"], []), kld().judge(["control failed"], [])
    del b.cells[0]["kld_max"]
    b.cells[0]["kld_quantiles"]["p50"] = 0.02
    b.stamp["commit"] = "def"
    table, notes = compare(a, b)
    assert [row[1] for row in table.rows] == ["kld_quantiles p50"]
    assert "figures only in the first: kld_max" in notes and any("stamp commit" in n for n in notes)
    assert sum("is void" in n for n in notes) == 2


def test_notes_are_in_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = kld()
    result.notes = ["speeds are a guess"]
    assert "speeds are a guess" in markdown(result) and "speeds are a guess" in html(result)
    path = tmp_path / "x.json"
    result.save(path)
    assert run(["eval", "report", str(path)]) == 0
    assert "note: speeds are a guess" in capsys.readouterr().err
