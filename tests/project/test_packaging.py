"""The project's own files agree with each other and with what is installed."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pdtlib

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = ("engine", "book", "test")
# torch's CUDA builds bring their own exactly pinned libraries; the CPU build has none of them.
CUDA = re.compile(r"^(nvidia-|cuda-|triton)")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def requirements(name: str, extras: set[str], *, markers: bool) -> list[Requirement]:
    """A distribution's requirements; with ``markers`` those of this platform alone, else of any."""
    found = []
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker is None:
            found.append(requirement)
        elif markers:
            environment = default_environment()
            if any(requirement.marker.evaluate({**environment, "extra": e}) for e in extras | {""}):
                found.append(requirement)
        elif "extra" not in str(requirement.marker) or any(
            f'"{e}"' in str(requirement.marker) for e in extras
        ):
            found.append(requirement)
    return found


def tree(name: str, extras: set[str], *, markers: bool = True) -> set[str]:
    """All distributions that installing ``name[extras]`` brings, without ``name``."""
    reached: dict[str, set[str]] = {}
    waiting = [(name, set(extras))]
    while waiting:
        current, wanted = waiting.pop()
        key = canonicalize_name(current)
        if key in reached and wanted <= reached[key]:
            continue
        reached[key] = reached.get(key, set()) | wanted
        try:
            waiting += [(r.name, set(r.extras)) for r in requirements(current, reached[key], markers=markers)]
        except metadata.PackageNotFoundError:
            assert not markers, f"{current} is required and not installed"
    return set(reached) - {canonicalize_name(name)}


def test_every_package_of_the_tree_is_pinned_and_installed_as_pinned():
    pinned = pins()
    for name in sorted(tree("pdtlib", set(EXTRAS))):
        if CUDA.match(name):
            continue
        assert name in pinned, f"constraints.txt does not pin {name}"
        installed = metadata.version(name).split("+")[0]  # a build's local label, as in 2.13.0+cpu
        assert installed == pinned[name], f"{name}: installed {installed}, pinned {pinned[name]}"


def test_no_pin_is_left_over():
    assert set(pins()) <= tree("pdtlib", set(EXTRAS), markers=False)


def test_constraints_are_sorted_and_exact():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", line) for line in lines)
    names = [canonicalize_name(line.split("==")[0]) for line in lines]
    assert names == sorted(set(names))


def test_every_requirement_of_pyproject_admits_its_pin():
    project = PYPROJECT["project"]
    for text in [*project["dependencies"], *(r for e in EXTRAS for r in project["optional-dependencies"][e])]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)]), text


def test_base_install_brings_typer_and_rich_and_what_they_need():
    assert {Requirement(r).name for r in PYPROJECT["project"]["dependencies"]} == {"typer", "rich"}
    assert tree("pdtlib", set()) == {"typer", "rich"} | tree("typer", set()) | tree("rich", set())
    assert len(tree("pdtlib", set())) <= 12


@pytest.mark.parametrize("command", [["--help"], ["predict", "--help"]])
def test_the_cli_starts_with_a_base_install(command):
    """Everything outside the base install is hidden, then ``pdt`` is run."""
    allowed = sorted(tree("pdtlib", set()) | {"pdtlib"})
    program = f"""
import sys
from importlib import metadata
allowed = {allowed!r}
canonical = lambda name: name.lower().replace("_", "-").replace(".", "-")
packages = metadata.packages_distributions()
hidden = {{m for m, dists in packages.items() if not any(canonical(d) in allowed for d in dists)}}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}} (not in a base install)", name=name)
assert "torch" in hidden and "numpy" in hidden
sys.meta_path.insert(0, Hide())
sys.argv = ["pdt", *{command!r}]
from pdtlib.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()


def test_environment_yml_installs_what_pyproject_names():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    plain = [item for item in environment["dependencies"] if isinstance(item, str)]
    pip = next(item["pip"] for item in environment["dependencies"] if isinstance(item, dict))
    assert plain == [f"python{PYPROJECT['project']['requires-python']}", "pip"]
    assert pip == ["-c constraints.txt", f"-e .[{','.join(EXTRAS)}]"]
    assert set(EXTRAS) == set(PYPROJECT["project"]["optional-dependencies"])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"-c constraints.txt -e '.[{','.join(EXTRAS)}]'" in makefile


def test_python_versions_agree():
    lowest = PYPROJECT["project"]["requires-python"].removeprefix(">=")
    classifiers = PYPROJECT["project"]["classifiers"]
    named = [c.rsplit(" ", 1)[1] for c in classifiers if re.search(r"Python :: 3\.\d+", c)]
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    assert named[0] == lowest
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == named
    assert PYPROJECT["tool"]["mypy"]["python_version"] == lowest
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + lowest.replace(".", "")


@pytest.mark.parametrize(
    ("python", "message"),
    [("", "none was found"), ("./old", "./old is Python 3.9.2")],
)
def test_make_says_that_python_is_too_old(tmp_path, python, message):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    old = tmp_path / "old"
    old.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit 0\nexit 1\n', encoding="utf-8"
    )
    old.chmod(0o755)
    command = ["make", "environment", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr
    assert message in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_pre_commit_runs_the_installed_tools():
    subprocess.run([sys.executable, "-m", "pre_commit", "validate-config"], cwd=ROOT, check=True, timeout=60)
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert all(hook["language"] == "system" and hook["entry"].startswith(".venv/bin/") for hook in hooks)
    assert all((ROOT / hook["entry"].split()[0]).exists() for hook in hooks)


def test_citation_agrees_with_the_project():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert citation["title"] == config["title"]
    assert citation["version"] == PYPROJECT["project"]["version"] == pdtlib.__version__
    assert [author["name"] for author in citation["authors"]] == [config["author"]]
    assert citation["license"] == ["Apache-2.0", "CC-BY-4.0"]
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Attribution 4.0 International" in (ROOT / "LICENSE-text").read_text(encoding="utf-8")
