// Rows of a table whose head stands in the page. A column says what its cell shows; what is not there says so.

import {el, setAttribute, setText, setVariable, sync} from "./dom.js";
import {isKnown, percent} from "./numbers.js";
import {shortened, visible} from "./text.js";

const CELL = {name: "name", text: "text", n: "n"};

/** `columns`: {kind: "name" | "text" | "n", show: (item) => text | Node-maker}; the first is the row's header. */
export class Rows {
  constructor(table, columns, keyOf, empty) {
    this.body = table.tBodies[0];
    this.columns = columns;
    this.keyOf = keyOf;
    this.empty = empty;
    this.numColumns = table.tHead.rows[0].cells.length;
  }

  show(items) {
    const shown = items.length ? items : [null];
    sync(this.body, shown, (item) => (item === null ? "\u0000none" : this.keyOf(item)),
      (item) => (item === null ? this.emptyRow() : this.row()), (row, item) => item !== null && this.fill(row, item));
  }

  /** Nothing is there, and why. */
  showNone(why) {
    this.show([]);
    setText(this.body.rows[0].cells[0], why);
  }

  emptyRow() {
    return el("tr", {className: "none"}, el("td", {colspan: this.numColumns, text: this.empty}));
  }

  row() {
    return el("tr", {}, ...this.columns.map((column, index) =>
      el(index ? "td" : "th", {scope: index ? null : "row", className: column.className ?? CELL[column.kind]})));
  }

  fill(row, item) {
    this.columns.forEach((column, index) => {
      const cell = row.cells[index];
      if (column.draw) column.draw(cell, item);
      else write(cell, column.show(item), column.kind);
    });
  }
}

/** Names are shortened and isolated; the whole name is its title. */
function write(cell, shown, kind) {
  const text = String(shown ?? "");
  if (kind === "n") return setText(cell, text);
  const short = shortened(text, kind === "name" ? 40 : 200);
  if (!cell.firstChild) cell.append(el("bdi"));
  setText(cell.firstChild, short);
  setAttribute(cell, "title", short === visible(text) ? null : visible(text).slice(0, 2000));
}

/** A link to a request's timeline. */
export function drawRequestLink(cell, id) {
  if (!id) return setText(cell, "");
  if (cell.firstElementChild?.tagName !== "A") cell.replaceChildren(el("a", {}, el("bdi")));
  const link = cell.firstElementChild;
  setAttribute(link, "href", `#requests/${encodeURIComponent(id)}`);
  setText(link.firstChild, shortened(id, 26));
  setAttribute(link, "title", visible(id));
}

/** A horizontal bar of parts, each a fraction of the whole; what it shows is written beside it. */
export function drawBar(cell, parts, text = "") {
  if (cell.firstElementChild?.className !== "barred") {
    cell.replaceChildren(el("span", {className: "barred"}, el("span", {className: "bar", "aria-hidden": "true"}), el("span")));
  }
  const [bar, words] = cell.firstElementChild.children;
  fillBar(bar, parts);
  setText(words, text);
}

export function fillBar(bar, parts) {
  sync(bar, parts, (part) => part.name, (part) => el("i", {className: part.name}),
    (node, part) => setVariable(node, "--part", `${(100 * clamp(part.fraction)).toFixed(2)}%`));
}

export const clamp = (fraction) => (isKnown(fraction) ? Math.min(1, Math.max(0, fraction)) : 0);

export const share = (part, whole) => (whole > 0 ? percent(part / whole) : percent(null));
