// A small Python editor on CodeMirror 6: spaces for Tab, Esc then Tab to leave, colours from exercise.css.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { bracketMatching, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorState } from "@codemirror/state";
import { EditorView, drawSelection, keymap, lineNumbers } from "@codemirror/view";
import { classHighlighter } from "@lezer/highlight";

const look = EditorView.theme({
  "&": { backgroundColor: "var(--pdt-editor-bg)", color: "var(--pdt-editor-text)", fontSize: "0.875rem" },
  "&.cm-focused": { outline: "2px solid var(--pdt-accent)", outlineOffset: "1px" },
  ".cm-scroller": { fontFamily: "var(--pst-font-family-monospace, monospace)", lineHeight: "1.5" },
  ".cm-content": { caretColor: "var(--pdt-editor-text)", minHeight: "6em" },
  ".cm-cursor": { borderLeftColor: "var(--pdt-editor-text)" },
  ".cm-gutters": {
    backgroundColor: "var(--pdt-editor-bg)",
    color: "var(--pdt-editor-comment)",
    borderRight: "1px solid var(--pdt-line)",
  },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    background: "var(--pdt-editor-selection)",
  },
  "&.cm-focused .cm-matchingBracket": { backgroundColor: "var(--pdt-editor-selection)" },
});

/**
 * Put the editor in place of `parent`'s content once its lines are measured. CodeMirror measures only what is in
 * the window; elsewhere its line numbers stand too close until the reader scrolls there, and in print.
 */
function mount(view, parent) {
  const stage = document.createElement("div");
  stage.className = "pdt-exercise-stage";
  stage.style.width = `${parent.clientWidth}px`;
  stage.append(view.dom);
  parent.after(stage);
  view.requestMeasure({
    read: () => null,
    write: () => {
      parent.replaceChildren(view.dom);
      stage.remove();
    },
  });
}

/**
 * @param {HTMLElement} parent emptied and filled
 * @param {{source: string, label: string, help: string, onChange: (source: string) => void,
 *   onFocus: () => void, onRun: () => void}} options `label` and `help` are ids of elements
 * @returns {{source: string, focus: () => void}} `source` can be read and set; setting it can be undone
 */
export function editor(parent, { source, label, help, onChange, onFocus, onRun }) {
  const run = () => {
    onRun();
    return true;
  };
  const view = new EditorView({
    state: EditorState.create({
      doc: source,
      extensions: [
        lineNumbers(),
        history(),
        drawSelection(),
        indentOnInput(),
        bracketMatching(),
        indentUnit.of("    "),
        EditorState.tabSize.of(4),
        python(),
        syntaxHighlighting(classHighlighter),
        keymap.of([{ key: "Mod-Enter", run }, indentWithTab, ...defaultKeymap, ...historyKeymap]),
        // The tab index is said aloud for axe, which does not count contenteditable as focusable.
        EditorView.contentAttributes.of({ tabindex: "0", "aria-labelledby": label, "aria-describedby": help }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) onChange(update.state.doc.toString());
          if (update.focusChanged && update.view.hasFocus) onFocus();
        }),
        look,
      ],
    }),
  });
  mount(view, parent);
  return {
    get source() {
      return view.state.doc.toString();
    },
    set source(text) {
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
    },
    focus: () => view.focus(),
  };
}
