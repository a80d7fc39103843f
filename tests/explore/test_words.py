"""The table of words: no key is missing, none is left over."""

import re
from pathlib import Path

import pdtlib
from pdtlib.figures.words import words

ROOT = Path(pdtlib.__file__).parent
SAY = re.compile(r'say\(\s*(f?)(["\'])(.+?)\2')
SOURCES = [*ROOT.glob("figures/**/*.py"), *ROOT.glob("explore/**/*.py")]


def patterns():
    """What the sources ask for, as regular expressions: an f-string's fields match anything."""
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        for formatted, _, key in SAY.findall(text):
            yield re.sub(r"\\\{.+?\\\}", "[^.]+", re.escape(key)) if formatted else re.escape(key)
        for key in re.findall(r'"([a-z]+\.[a-z_0-9]+)"', text):
            yield re.escape(key)


def test_every_word_is_used_and_every_use_has_a_word():
    asked = set(patterns())
    keys = set(words())
    unused = {key for key in keys if not any(re.fullmatch(pattern, key) for pattern in asked)}
    assert unused == set()
    plain = {
        key
        for source in SOURCES
        for formatted, _, key in SAY.findall(source.read_text(encoding="utf-8"))
        if not formatted
    }
    assert plain - keys == set()


def test_words_are_trimmed_text():
    assert all(text and text == text.strip() for text in words().values())
