"""The glossary: every term has its Chinese, names aside, and stands where a reader looks for it."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "chapters/glossary.md"
CHINESE = re.compile(r"[\u4e00-\u9fff]")
NAMES = {
    "DDP, FSDP",
    "DeepSpeed, Megatron-LM",
    "gloo, NCCL",
    "GPipe",
    "NVLink",
    "Transformer",
    "ZB-H1, ZB-H2, ZB-V",
}
"""Of programs, schedules and products, which are the same in Chinese."""


def entries() -> dict[str, str]:
    """What each term means, by its line."""
    found: dict[str, str] = {}
    term = ""
    for line in PAGE.read_text(encoding="utf-8").split("```{glossary}\n")[1].split("\n```")[0].splitlines():
        if line and not line.startswith(" "):
            term = line
            assert term not in found, f"{term} stands twice"
            found[term] = ""
        elif line:
            found[term] += line.strip() + " "
    return found


def test_every_term_has_its_chinese_and_a_meaning() -> None:
    found = entries()
    assert len(found) > 100
    assert {term for term in found if not CHINESE.search(term)} == NAMES
    assert [term for term, meaning in found.items() if len(meaning) < 20] == []


def test_terms_stand_in_alphabetical_order() -> None:
    keys = [re.sub(r"[^a-z0-9 ]", "", term.split("(")[0].lower()) for term in entries()]
    assert keys == sorted(keys)
