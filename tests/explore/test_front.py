"""The front end's modules under Node."""

import json
import subprocess
from pathlib import Path

import pdtlib
from pdtlib.book import vendor

FRONT = Path(pdtlib.__file__).parent / "explore" / "front"
NODE = vendor.node()


def test_the_state_goes_through_the_address_and_back():
    script = Path(__file__).with_name("address.test.mjs")
    run = subprocess.run([NODE, script, FRONT], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["restored"] == {"ranks": "64", "model": "70b", "note": "1 & 2 = ü/%"}
    assert found["others"] == {"bucket": "50"}
    assert "zero.model" not in found["shared"]  # what is as written needs no mention
    assert found["shared"].endswith("#zero")
    assert "q=ring" in found["shared"]
    assert found["link"].endswith("#explorer-zero")
    assert "overlap" not in found["link"]
    assert found["after"] == "https://book.example/sub/02.html?q=ring&overlap.bucket=50#zero"


def test_every_module_is_valid():
    for module in FRONT.glob("*.js"):
        copy = subprocess.run(
            [NODE, "--check", "--input-type=module", "-"],
            input=module.read_text(encoding="utf-8"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert copy.returncode == 0, copy.stderr
