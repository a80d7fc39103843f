"""Helpers of the chapters, the finder of browsers, the address, the labs' launcher."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pdtlib.book import address, browser, lab, notebook, suites

ROOT = Path(__file__).parents[2]


def test_an_excerpt_is_the_source_itself():
    text = notebook.excerpt_markdown(lab.find)
    source = Path(lab.__file__).read_text(encoding="utf-8")
    body = text.split("```python\n")[1].removesuffix("\n```\n")
    assert body in source
    line = source.splitlines().index(body.splitlines()[0]) + 1
    assert text.startswith(f"`pdtlib/book/lab.py`, line {line}:")


def test_an_excerpt_can_end_early_but_not_by_accident():
    text = notebook.excerpt_markdown(notebook.figure, upto="bundle = {")
    assert "layout =" in text
    assert "bundle" not in text
    with pytest.raises(ValueError, match="no such text"):
        notebook.excerpt_markdown(notebook.figure, upto="no such text")


def test_a_fence_in_the_source_does_not_end_the_excerpt(tmp_path, monkeypatch):
    (tmp_path / "fenced.py").write_text('def f():\n    """A fence:\n\n    ```\n    """\n', encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import fenced

    assert "````python\n" in notebook.excerpt_markdown(fenced.f)


def test_a_figure_needs_words():
    with pytest.raises(ValueError, match="alt"):
        notebook.figure({"data": []}, alt=" ")


def test_the_named_browser_is_taken_or_refused(monkeypatch):
    monkeypatch.setenv("PDTLIB_BROWSER", sys.executable)
    assert browser.find() == Path(sys.executable)
    monkeypatch.setenv("PDTLIB_BROWSER", "/no/such/browser")
    with pytest.raises(FileNotFoundError, match="/no/such/browser"):
        browser.find()


def test_without_a_browser_the_reason_is_given(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("PDTLIB_BROWSER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    assert browser.main([]) == 1
    assert "no browser" in capsys.readouterr().err


@pytest.fixture
def clone(tmp_path):
    for name in ("README.md", "CITATION.cff", "_config.yml"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


def test_the_address_reaches_readme_and_citation_and_goes_again(clone):
    assert address.address(clone) == address.address()
    before = {name: (clone / name).read_text(encoding="utf-8") for name in address.FILES}
    config = (clone / "_config.yml").read_text(encoding="utf-8")
    assert 'url: ""' in config, "the test below starts from an empty address"
    (clone / "_config.yml").write_text(
        config.replace('url: ""', "url: https://github.com/o/r/"), encoding="utf-8"
    )
    assert address.main(["--check"], clone) == 1
    assert address.main([], clone) == 0
    readme = (clone / "README.md").read_text(encoding="utf-8")
    assert "https://github.com/o/r/actions/workflows/tests.yml/badge.svg" in readme
    assert "mybinder.org/v2/gh/o/r/main" in readme
    assert 'repository-code: "https://github.com/o/r"' in (clone / "CITATION.cff").read_text(encoding="utf-8")
    assert address.main(["--check"], clone) == 0
    (clone / "_config.yml").write_text(config, encoding="utf-8")
    assert address.main([], clone) == 0
    assert before == {name: (clone / name).read_text(encoding="utf-8") for name in address.FILES}


def test_no_address_stands_anywhere_but_in_the_settings():
    for name in address.FILES:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text == address.FILES[name](text, address.address())


def plant_lab(root, program, launch="python labs/07_planted/lab.py"):
    path = root / "labs/07_planted/lab.py"
    path.parent.mkdir(parents=True)
    path.write_text(f"LAUNCH = {launch!r}\n" + textwrap.dedent(program), encoding="utf-8")
    return path


def test_a_lab_is_run_by_its_own_launch_line(tmp_path, monkeypatch, capsys):
    plant_lab(
        tmp_path,
        """
        import json, sys
        print("measured 3")
        with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
            json.dump({"measured": 3, "arguments": sys.argv[1:-2]}, file)
        """,
    )
    monkeypatch.setattr(lab, "ROOT", tmp_path)
    monkeypatch.setattr(lab, "find", lambda number: tmp_path / "labs/07_planted/lab.py")
    assert lab.run_lab("07", "--preset", "large") == {"measured": 3, "arguments": ["--preset", "large"]}
    assert capsys.readouterr().out == "$ python labs/07_planted/lab.py --preset large\nmeasured 3\n"


def test_a_lab_that_fails_or_hangs_says_so(tmp_path, monkeypatch):
    path = plant_lab(
        tmp_path, "import sys, time\nprint('before')\nif '--hang' in sys.argv: time.sleep(60)\nsys.exit(3)\n"
    )
    monkeypatch.setattr(lab, "ROOT", tmp_path)
    monkeypatch.setattr(lab, "find", lambda number: path)
    with pytest.raises(RuntimeError, match=r"exit 3(.|\n)*before"):
        lab.run_lab("07")
    with pytest.raises(RuntimeError, match="longer than 1 s"):
        lab.run_lab("07", "--hang", timeout_s=1)


def test_labs_are_found_by_number(tmp_path):
    path = plant_lab(tmp_path, "")
    assert lab.find("7", root=tmp_path) == lab.find("07_planted", root=tmp_path) == path
    with pytest.raises(ValueError, match="07_planted"):
        lab.find("8", root=tmp_path)
    path.write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="LAUNCH"):
        lab.launch_line(path)


def test_an_unknown_lab_is_a_wrong_call_and_nothing_else_is_said():
    program = [sys.executable, "-W", "error", "-m", "pdtlib.book", "99"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("lab='99'; valid: 01_")


def test_every_folder_of_tests_is_in_a_suite():
    named = " ".join(part for suite in suites.suites(2) for command in suite.commands for part in command)
    assert "test-targets" in named
    named += " tests/targets"  # which is what the Makefile's test-targets runs
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "$(TARGETS)/bin/python -m pytest" in makefile
    assert "tests/slurm" in makefile
    assert "make test-slurm" in (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    named += " tests/slurm"  # which a job of its own runs, where the system has Slurm
    for path in (ROOT / "tests").rglob("test_*.py"):
        folder = path.relative_to(ROOT).parent.as_posix()
        assert any(part == folder or folder.startswith(part + "/") for part in named.split()), folder


def test_a_program_runs_as_it_is_typed(capsys):
    lab.run_program("python -c 'import sys; print(6 * 7); print(sys.executable)'")
    assert capsys.readouterr().out.splitlines()[1:] == ["42", sys.executable]


def test_a_program_that_fails_says_so():
    with pytest.raises(RuntimeError, match=r"failed \(exit 3\)"):
        lab.run_program("python -c 'raise SystemExit(3)'")
