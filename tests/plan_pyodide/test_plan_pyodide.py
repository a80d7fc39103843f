"""tests/plan passes in Pyodide, where plan comes from the built wheel as it does in a reader's browser."""

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from pdtlib.book.vendor import node, pyodide_dir

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "hypothesis", "sortedcontainers")
IGNORED = {
    "test_pyodide.py": "starts Pyodide itself",
    "test_stdlib_only.py": "starts a process; here nothing but the standard library is installed anyway",
}
DESELECTED = {
    # Tests that run pdt: its commands need typer, whose pydantic is compiled code and not in Pyodide's core.
    **dict.fromkeys(
        (
            "test_pdt_export",
            "test_pdt_lint",
            "test_pdt_plan",
            "test_gpu_hours_and_money_follow_from_the_rate",
            "test_json_output",
            "test_table_output",
            "test_a_bad_job_exits_2_with_its_problems_on_both_channels",
            "test_a_missing_file_exits_2",
            "test_a_job_a_line_gives_a_result_a_line",
            "test_lines_that_are_no_job",
            "test_a_wrong_call_exits_2",
            "test_an_unknown_stack_exits_2",
            "test_memory_that_is_not_there_is_pointed_out",
            "test_every_command_explains_itself",
        ),
        "runs pdt",
    ),
    "test_help_lists_every_command_without_importing_any": "starts a process",
    "test_deep_nesting_is_refused": "ends the interpreter: the stack is shorter than Python's own limit",
    "test_a_large_pipeline_is_simulated_in_time": "a time limit for CPython",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built from a copy, so that no old build folder gets into it."""
    folder = tmp_path_factory.mktemp("wheel")
    skip = shutil.ignore_patterns("node_modules", "dist", "__pycache__")
    shutil.copytree(ROOT / "pdtlib", folder / "source" / "pdtlib", ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE", "LICENSE-text"):
        shutil.copy(ROOT / name, folder / "source")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        folder,
        "./source",
    ]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """pytest, hypothesis and what they need, in a folder of their own: pure Python, as Pyodide can import."""
    folder = tmp_path_factory.mktemp("packages")
    for name in PACKAGES:
        for file in metadata.files(name) or []:
            if ".." in file.parts or file.suffix == ".pyc":
                continue
            assert file.suffix not in (".so", ".pyd"), f"{name} has compiled code"
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)
    return folder


@pytest.mark.timeout(1500)
def test_tests_of_plan_pass_in_pyodide(wheel, packages, record_property):
    choice = [f"--ignore=/tests/plan/{name}" for name in IGNORED]
    choice += ["-k", f"not ({' or '.join(DESELECTED)})"]
    command = [node(), HERE / "run_suite.mjs", pyodide_dir(), wheel, packages, ROOT, HERE / "suite.py"]
    done = subprocess.run(
        [*command, "/tests/plan", "-q", *choice], capture_output=True, text=True, timeout=1400, check=False
    )
    print(done.stdout[-3000:], done.stderr[-3000:])
    assert done.returncode == 0
    closing = done.stdout.strip().splitlines()[-1]
    record_property("pyodide", closing)
    record_property("prediction", done.stdout.splitlines()[0])
    assert int(re.search(r"(\d+) passed", closing)[1]) > 1000
    assert not re.search("skipped|failed|error", closing)


def test_what_is_left_out_exists():
    """A test that was renamed must not stay on the list."""
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "plan").rglob("test_*.py"))
    assert [name for name in DESELECTED if f"def {name}" not in text] == []
    assert [name for name in IGNORED if not (ROOT / "tests" / "plan" / name).exists()] == []
