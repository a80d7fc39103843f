"""The words of explorers and figures: one table, ``words.toml``, that can be translated in one place."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=1)
def words() -> dict[str, str]:
    """Every template by its key, ``section.name``."""
    tables = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
    return {f"{section}.{name}": text for section, table in tables.items() for name, text in table.items()}


def say(key: str, **values: Any) -> str:
    """The text of a key, filled in; raises KeyError for an unknown key or a missing value."""
    return words()[key].format(**values)
