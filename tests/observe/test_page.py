"""A run's report: one file, which asks nobody for anything and says what the run measured."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pdtlib.cli.app import main
from pdtlib.engine.training.run_dir import read_metrics
from pdtlib.observe.shares import read_perfetto
from pdtlib.plan.step_shares import steps_of, typical
from pdtlib.plan.units import percent_text
from pdtlib.resilience import trials

JOB = """
[model]
layers = 1
hidden = 32
heads = 2
vocab = 256
seq = 32
[train]
global_batch = 4
micro_batch = 2
precision = "fp32"
steps = 4
[parallel]
dp = 2
"""


class Page(HTMLParser):
    """The elements of a page, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("rect", "polyline"), "what closes itself is a drawing"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_report_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    out = tmp_path / "a <b> & c"
    code, words = trials.run_local(tmp_path / "job.toml", out, ranks=2)
    assert code == 0, words
    with pytest.raises(SystemExit) as stop:
        main(["report", str(out)])
    assert not stop.value.code
    assert capsys.readouterr().out.strip() == str(out / "report.html")
    text = (out / "report.html").read_text()
    page = Page(text)
    assert page.open == []
    assert page.addresses == []
    assert not re.search(r"https?:|@import|url\(|<script", text)
    said = "".join(page.words)
    assert "a <b> & c" in said
    assert f"{read_metrics(out)[-1]['loss']:.4f}" in said
    for spans in read_perfetto(out / "trace.json").values():
        one = typical(steps_of(spans))
        assert f"computation {percent_text(one.compute_s / one.step_s)}" in said
    assert "memory.params" in said
    assert "rank 1," in said


def test_what_is_no_run_has_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path)])
    assert stop.value.code == 2
    assert "holds no finished run" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
