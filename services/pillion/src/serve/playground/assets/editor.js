// An editor: a textarea with colours, line numbers and marks behind it. Users and screen readers use only the textarea, so all
// features of the browser's text fields work.

export const $ = (id) => document.getElementById(id);
// The height of a line in the style sheet, and the padding above the first one, in pixels.
const ROW = 20;
const ABOVE = 10;

/** Creates an element with properties, data attributes and children. Strings become text nodes, never HTML. */
export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  const { dataset, ...rest } = properties ?? {};
  Object.assign(element, rest);
  Object.assign(element.dataset, dataset);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// --- Colours of YAML ---------------------------------------------------------------------------------------------------

// Groups: a comment, a quoted string, an expression, a key, a constant, punctuation. Other text has no colour. A key must begin
// at the start of a word: otherwise the pattern would be tried at each character of a long word that is not a key.
const TOKENS = /((?<=^|\s)#.*$)|("(?:[^"\\]|\\.)*"?|(?<![\w])'(?:[^']|'')*'?)|(\$\{[^}]*\}?)|((?<![\w$./*-])[\w$./*-]+(?=\s*:(?:\s|$)))|((?<=^|[\s[,{])(?:true|false|null|-?\d+(?:\.\d+)?)(?=$|[\s,\]}]))|([[\]{},:|>&]|-(?=\s))/g;
const CLASSES = [null, "c", "s", "e", "k", "n", "p"];
const EXPRESSION = /\$\{[^}]*\}?/g;

/** Returns a line as coloured nodes, whose combined text is the line. */
export function coloured(line) {
  const nodes = [];
  // A very long line gets no colours, because matching it would block the page.
  if (line.length > 2000) return [line];
  let end = 0;
  for (const match of line.matchAll(TOKENS)) {
    if (match.index > end) nodes.push(line.slice(end, match.index));
    const kind = CLASSES[match.findIndex((group, index) => index > 0 && group !== undefined)];
    const isKey = kind === "s" && /^\s*:(\s|$)/.test(line.slice(match.index + match[0].length));
    if (kind === "s" && !isKey && match[0].includes("${")) {
      let from = 0;
      for (const inner of match[0].matchAll(EXPRESSION)) {
        nodes.push(h("span", { className: "s" }, match[0].slice(from, inner.index)));
        nodes.push(h("span", { className: "e" }, inner[0]));
        from = inner.index + inner[0].length;
      }
      nodes.push(h("span", { className: "s" }, match[0].slice(from)));
    } else {
      nodes.push(h("span", { className: isKey ? "k" : kind }, match[0]));
    }
    end = match.index + match[0].length;
  }
  nodes.push(line.slice(end));
  return nodes;
}

export class Editor {
  /** `changed` is called after every change. `reveal` makes the editor visible. */
  constructor(name, changed, reveal) {
    this.name = name;
    this.reveal = reveal;
    this.area = $(name);
    this.box = this.area.parentElement;
    this.gutter = h("div", { className: "gutter", ariaHidden: "true" });
    this.paint = h("div", { className: "paint", ariaHidden: "true" });
    this.box.prepend(this.gutter, this.paint);
    this.lines = [];
    this.marks = [];
    this.problems = [];
    // Tab indents only if the user has typed since the focus, so that keyboard users can tab through the page.
    this.isTyping = false;
    Object.assign(this.area, { spellcheck: false, autocomplete: "off", wrap: "off" });
    this.area.setAttribute("autocapitalize", "off");
    this.area.addEventListener("input", () => {
      this.isTyping = true;
      this.repaint();
      changed();
    });
    this.area.addEventListener("focus", () => (this.isTyping = false));
    this.area.addEventListener("keydown", (event) => this.key(event));
    this.repaint();
  }

  get text() {
    return this.area.value;
  }

  set text(text) {
    this.area.value = text;
    this.box.scrollTo(0, 0);
    this.show([]);
    this.repaint();
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    if (event.key === "Escape") {
      this.isTyping = false;
    } else if (event.key === "Tab" && this.isTyping) {
      event.preventDefault();
      this.indent(event.shiftKey);
    } else if (event.key === "Enter" && !event.shiftKey) {
      const before = this.text.slice(0, this.area.selectionStart);
      const indent = before.slice(before.lastIndexOf("\n") + 1).match(/^ */)[0];
      if (indent === "") return;
      event.preventDefault();
      this.insert(`\n${indent}`);
    }
  }

  /** Replaces the selection by text as typing does, so that it can be undone. */
  insert(text) {
    // Deprecated, but nothing else keeps the browser's undo history.
    if (!document.execCommand("insertText", false, text)) {
      this.area.setRangeText(text, this.area.selectionStart, this.area.selectionEnd, "end");
      this.area.dispatchEvent(new Event("input"));
    }
  }

  /** Indents the selected lines by two spaces, or removes that indentation. */
  indent(isBack) {
    const { selectionStart: from, selectionEnd: to } = this.area;
    if (from === to && !isBack) return this.insert("  ");
    const start = this.text.lastIndexOf("\n", from - 1) + 1;
    const lines = this.text.slice(start, to).split("\n");
    const moved = lines.map((line) => (isBack ? line.replace(/^ {1,2}/, "") : `  ${line}`)).join("\n");
    this.area.setSelectionRange(start, to);
    this.insert(moved);
    this.area.setSelectionRange(from === to ? start + moved.length : start, start + moved.length);
  }

  /** Repaints only the changed lines, which is one line in most cases. */
  repaint() {
    const lines = this.text.split("\n");
    const shown = this.paint;
    for (const mark of this.marks.splice(0)) mark.remove();
    lines.forEach((line, index) => {
      if (this.lines[index] === line) return;
      const row = h("div", {}, coloured(line));
      if (shown.children[index]) shown.children[index].replaceWith(row);
      else shown.append(row);
    });
    while (shown.children.length > lines.length) shown.lastChild.remove();
    while (this.gutter.children.length > lines.length) this.gutter.lastChild.remove();
    while (this.gutter.children.length < lines.length) {
      this.gutter.append(h("div", {}, String(this.gutter.children.length + 1)));
    }
    this.lines = lines;
  }

  /** Shows problems in the list below, at the line numbers and in the text. */
  show(problems) {
    this.problems = problems;
    for (const row of this.gutter.children) row.className = "";
    for (const mark of this.marks.splice(0)) mark.remove();
    for (const problem of problems.filter((problem) => problem.line)) {
      const row = this.gutter.children[problem.line - 1];
      if (row && row.className !== "error") row.className = problem.severity;
      const mark = h("span", { className: `mark ${problem.severity}` });
      const columns = Math.max((problem.endColumn ?? problem.column + 1) - problem.column, 1);
      mark.style.top = `${ABOVE + (problem.line - 1) * ROW}px`;
      mark.style.left = `calc(4px + ${problem.column - 1}ch)`;
      mark.style.width = `${columns}ch`;
      this.marks.push(mark);
    }
    // The marks are appended after the rows, because `repaint` accesses the rows by their index.
    this.paint.append(...this.marks);
    const list = $(`${this.name}-problems`);
    // If the focus is in the list, it moves to the editor. Otherwise the browser would reset it to the top of the page.
    if (list.contains(document.activeElement)) this.area.focus({ preventScroll: true });
    list.hidden = problems.length === 0;
    list.replaceChildren(...problems.map((problem) => h("li", {}, this.entry(problem))));
    const errors = problems.filter((problem) => problem.severity === "error").length;
    const count = $(`${this.name}-count`);
    count.hidden = problems.length === 0;
    count.className = errors > 0 ? "count" : "count mild";
    count.replaceChildren(String(problems.length), h("span", { className: "unseen" }, ` ${errors > 0 ? "problems" : "warnings"}`));
    this.area.setAttribute("aria-invalid", String(errors > 0));
  }

  entry(problem) {
    const place = problem.line ? ` line ${problem.line}, column ${problem.column}` : "";
    const isNamed = !problem.path || problem.message.startsWith("unknown field");
    const button = h("button", { type: "button", className: problem.severity },
      h("b", {}, problem.severity), h("span", { className: "place" }, place), ": ",
      isNamed ? problem.message : `${problem.path}: ${problem.message}`,
      problem.help ? h("span", { className: "remedy" }, problem.help) : null);
    button.addEventListener("click", () => this.goTo(problem));
    return button;
  }

  goTo(problem) {
    this.reveal();
    const row = (problem.line ?? 1) - 1;
    const start = this.lines.slice(0, row).reduce((sum, line) => sum + line.length + 1, 0);
    // Columns count characters, and some characters are two units of a JavaScript string.
    const units = (column) => [...(this.lines[row] ?? "")].slice(0, column - 1).join("").length;
    const column = problem.column ?? 1;
    this.area.focus({ preventScroll: true });
    this.area.setSelectionRange(start + units(column), start + units(problem.endColumn ?? column));
    this.box.scrollTo({ top: row * ROW - this.box.clientHeight / 3, left: 0 });
  }
}
