"""An exercise on the static page: HTML that reads well as it is, and that ``front/exercise.js`` animates.

Attributes that scripts and tests may rely on: ``[data-exercise=ID]`` is the exercise; in it
``[data-runs-in]`` (browser or ranks), ``[data-editor]``, ``[data-run]``, ``[data-stop]``, ``[data-reset]``,
``[data-status]`` (the live region), ``[data-report]``, which has ``[data-result=pass|fail]`` after a run and
holds one ``[data-check=pass|fail]`` a check, ``[data-hint=N]``, ``[data-solution]``, and ``[data-solved]``,
shown once solved.
"""

import json
from html import escape
from urllib.parse import quote

from pdtlib.exercises.catalog import get
from pdtlib.exercises.exercise import Exercise


def html(id: str) -> str:
    """The exercise as an HTML fragment: statement, editor or starter file, hints, folded solution.

    Raises:
        ValueError: no such exercise.
    """
    exercise = get(id)
    work = _editor(exercise) if exercise.runs_in == "browser" else _file(exercise)
    name = f"exercise-{id}"
    return "\n".join(
        [
            f'<section class="pdt-exercise" id="{name}" data-exercise="{id}"'
            f' data-runs-in="{exercise.runs_in}" data-entry="{exercise.entry}"'
            f' data-limit-s="{exercise.time_limit_s:g}" aria-labelledby="{name}-title">',
            '<div class="pdt-exercise-head">',
            f'<h3 class="pdt-exercise-title" id="{name}-title">Exercise: {escape(exercise.title)}</h3>',
            '<span class="pdt-exercise-solved" data-solved hidden>Solved</span>',
            "</div>",
            f'<div class="pdt-exercise-prompt">{_markdown(exercise.prompt)}</div>',
            work,
            *(
                f'<details class="pdt-exercise-fold" data-hint="{number}"><summary>Hint {number}</summary>'
                f"<div>{_markdown(hint)}</div></details>"
                for number, hint in enumerate(exercise.hints, 1)
            ),
            '<details class="pdt-exercise-fold" data-solution><summary>Solution</summary>'
            f"<div>{_code(exercise.solution)}</div></details>",
            "</section>",
        ]
    )


def _editor(exercise: Exercise) -> str:
    name = f"exercise-{exercise.id}"
    # "<" is escaped so that no text can end the script element.
    starter = json.dumps({"source": exercise.starter.rstrip("\n")}).replace("<", "\\u003c")
    return f"""<div class="pdt-exercise-work">
<p class="pdt-exercise-label" id="{name}-label">Your code</p>
<div class="pdt-exercise-editor" data-editor>{_code(exercise.starter)}</div>
<p class="pdt-exercise-help" id="{name}-help" data-needs-script hidden>Tab indents. Press <kbd>Esc</kbd>, then
<kbd>Tab</kbd>, to leave the editor. <kbd>Ctrl</kbd>+<kbd>Enter</kbd> runs the checks.</p>
<div class="pdt-exercise-buttons" data-needs-script hidden>
<button type="button" class="pdt-exercise-run" data-run>Run checks</button>
<button type="button" data-stop hidden>Stop</button>
<button type="button" data-reset>Reset</button>
</div>
<p class="pdt-exercise-status" data-status role="status" aria-live="polite"></p>
<div class="pdt-exercise-report" data-report></div>
<noscript><p>The editor needs JavaScript. Or run <code>pdt grade {exercise.id} FILE</code>.</p></noscript>
<script type="application/json" data-starter>{starter}</script>
</div>"""


def _file(exercise: Exercise) -> str:
    file = f"{exercise.id.replace('-', '_')}.py"
    commands = f"pdt grade {exercise.id} --starter > {file}\npdt grade {exercise.id} {file}"
    notebook = f"from pdtlib import exercises\n\n{exercise.call}"
    return f"""<div class="pdt-exercise-work">
<p>This one runs on several processes of your machine, with PyTorch.
<a class="pdt-exercise-download" download="{file}"
href="data:text/x-python;charset=utf-8,{quote(exercise.starter)}">Download the starter</a>, complete it, and
grade it:</p>
{_code(commands, "console")}
<p>The first line writes the starter, too. In a notebook, here or on Colab:</p>
{_code(notebook)}
<details class="pdt-exercise-fold"><summary>The starter, <code>{file}</code></summary>
<div>{_code(exercise.starter)}</div></details>
</div>"""


def _markdown(text: str) -> str:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    # A table that is too wide scrolls by itself, not the page; then it must be reachable by keyboard.
    box = '<div class="pdt-exercise-table" tabindex="0" role="group" aria-label="Table">'
    parser.add_render_rule("fence", lambda _, tokens, i, *__: _code(tokens[i].content, tokens[i].info))
    parser.add_render_rule("table_open", lambda *_: f'{box}<table class="table">')
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    return parser.render(text)


def _code(text: str, language: str = "python") -> str:
    """Highlighted with the classes that Sphinx uses, so that the theme's colours apply."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    name = {"console": "bash", "": "text"}.get(language, language)
    inner = highlight(text.rstrip("\n"), get_lexer_by_name(name), HtmlFormatter(nowrap=True))
    # Long lines scroll; a region that scrolls must be reachable by keyboard.
    return (
        f'<div class="highlight-{language or "text"} notranslate"><div class="highlight">'
        f'<pre tabindex="0">{inner}</pre></div></div>'
    )
