"""Colours: the site's stylesheet has the same, and all can be told from their ground."""

import re
from pathlib import Path

import pytest

import pdtlib
from pdtlib.figures.theme import DARK, LIGHT, resolve

CSS = (Path(pdtlib.__file__).parent / "explore/front/explorer.css").read_text(encoding="utf-8")


def css_colors(selector):
    block = CSS.split(selector + " {", 1)[1].split("}", 1)[0]
    return dict(re.findall(r"--pdt-([a-z0-9-]+): (#[0-9a-f]{6});", block))


@pytest.mark.parametrize(("palette", "selector"), [(LIGHT, ":root"), (DARK, 'html[data-theme="dark"]')])
def test_the_stylesheet_has_the_same_colors(palette, selector):
    found = css_colors(selector)
    assert {name: found[name] for name in palette} == dict(palette)


def luminance(color):
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("selector", [":root", 'html[data-theme="dark"]'])
def test_contrast_is_enough_for_text_and_for_shapes(selector):
    colors = css_colors(selector)
    for ground in ("paper", "panel"):
        for text in ("ink", "muted", "good", "bad"):
            assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
    for shape in ("c1", "c2", "c3", "c4", "c5", "c6", "field-edge"):
        assert contrast(colors[shape], colors["paper"]) >= 3, shape
    assert contrast(colors["c1"], colors["paper"]) >= 4.5  # a chosen segment carries text


def test_resolve_replaces_tokens_everywhere():
    figure = {"data": [{"marker": {"color": ["@c1", "#123456"]}}], "layout": {"title": "a@c1"}}
    assert resolve(figure, {"c1": "#000000"}) == {
        "data": [{"marker": {"color": ["#000000", "#123456"]}}],
        "layout": {"title": "a@c1"},
    }
    with pytest.raises(KeyError):
        resolve("@nothing")
