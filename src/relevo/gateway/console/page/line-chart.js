// Lines over the last minutes: drawn by DOM calls, read with a pointer, with arrow keys, or as a table. Lines differ in
// dash and place of their label as well as in colour. Gaps stay gaps; a lone point is a dot.

import {el, setAttribute, setText, setVariable, svg, sync} from "./dom.js";
import {clock, isKnown, UNKNOWN} from "./numbers.js";

const HEIGHT = 190, TOP = 10, BOTTOM = 22, LEFT = 58, RIGHT = 12;

export class LineChart {
  /** `series`: [{name, className}]; `format(value)`; `leastTop`: of the vertical axis. */
  constructor(parent, {title, series, format, leastTop = 0, most = Infinity}) {
    Object.assign(this, {title, series, format, leastTop, most, atS: [], values: series.map(() => []), at: null, width: 600});
    this.readout = el("p", {className: "readout"});
    this.plot = svg("svg", {className: "plot", tabindex: "0", role: "img", focusable: "true"});
    this.grid = svg("g", {className: "grid", "aria-hidden": "true"});
    this.lines = svg("g", {"aria-hidden": "true"});
    this.cross = svg("g", {className: "cross", "aria-hidden": "true"});
    this.plot.append(this.grid, this.lines, this.cross);
    this.table = this.emptyTable();
    this.details = el("details", {}, el("summary", {text: `${title} as a table`}),
      el("div", {className: "scroll tall", tabindex: "0", role: "group", "aria-label": `Table of ${title}`}, this.table));
    this.details.addEventListener("toggle", () => this.fillTable());
    this.figure = el("figure", {className: "chart"}, el("figcaption", {}, el("span", {text: title}), this.legend()),
      this.readout, this.plot, this.details);
    parent.append(this.figure);
    this.listen();
  }

  legend() {
    return el("span", {className: "lines-legend"}, ...this.series.map(({name, className}) =>
      el("span", {}, svg("svg", {className: `swatch ${className}`, viewBox: "0 0 22 8", "aria-hidden": "true"},
        svg("path", {d: "M0 4H22"})), name)));
  }

  emptyTable() {
    return el("table", {className: "numbers"}, el("caption", {text: this.title}),
      el("thead", {}, el("tr", {}, el("th", {scope: "col", text: "From"}),
        ...this.series.map(({name}) => el("th", {scope: "col", className: "n", text: name})))), el("tbody"));
  }

  listen() {
    this.plot.addEventListener("pointermove", (event) => {
      const box = this.plot.getBoundingClientRect();
      this.point(Math.round(((event.clientX - box.left - LEFT) / (this.width - LEFT - RIGHT)) * (this.atS.length - 1)));
    });
    this.plot.addEventListener("pointerleave", () => this.point(null));
    this.plot.addEventListener("blur", () => this.point(null));
    this.plot.addEventListener("keydown", (event) => {
      const last = this.atS.length - 1;
      const from = this.at ?? last;
      const to = {ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last, Escape: null}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.readout.setAttribute("aria-live", "polite");
      this.point(to);
    });
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  /** Of one length each: where intervals begin, and per series a value or null. */
  show(atS, values) {
    if (this.at !== null && this.atS.length) this.at = Math.max(0, atS.indexOf(this.atS[this.at]));
    Object.assign(this, {atS, values});
    this.draw();
    this.fillTable();
  }

  point(index) {
    this.at = index === null || !this.atS.length ? null : Math.min(this.atS.length - 1, Math.max(0, index));
    if (this.at === null) this.readout.removeAttribute("aria-live");
    this.drawCross();
  }

  draw() {
    this.width = this.plot.clientWidth || this.width;
    setAttribute(this.plot, "viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.top = niceTop(Math.max(this.leastTop, ...this.values.flat().filter(isKnown)), this.most);
    this.drawGrid();
    sync(this.lines, this.series.map((each, index) => ({...each, index})), (each) => each.name,
      (each) => svg("path", {className: `line ${each.className}`}), (path, {index}) => setAttribute(path, "d", this.path(index)));
    this.drawCross();
    const last = this.series.map(({name}, index) => `${name} ${this.format(lastKnown(this.values[index]))}`).join(", ");
    setAttribute(this.plot, "aria-label", `${this.title}, ten minutes. At the end: ${last}.`);
  }

  drawGrid() {
    const levels = [0, 0.25, 0.5, 0.75, 1].map((part) => part * this.top);
    const minutes = this.atS.map((at, index) => ({at, index}))
      .filter(({at, index}) => index && Math.floor(at / 120) !== Math.floor(this.atS[index - 1] / 120));
    const marks = [...levels.map((level) => ({key: `y${level}`, level})), ...minutes.map(({at, index}) => ({key: `x${at}`, at, index}))];
    sync(this.grid, marks, (mark) => mark.key, () => svg("g", {}, svg("path"), svg("text")), (group, mark) => {
      const [path, text] = group.children;
      if (mark.at === undefined) {
        setAttribute(path, "d", `M${LEFT} ${this.y(mark.level)}H${this.width - RIGHT}`);
        placeText(text, this.format(mark.level), LEFT - 6, this.y(mark.level) + 4, "end");
      } else {
        setAttribute(path, "d", `M${this.x(mark.index)} ${HEIGHT - BOTTOM}v4`);
        placeText(text, clock(mark.at).slice(0, 5), this.x(mark.index), HEIGHT - 5, "middle");
      }
    });
  }

  x(index) {
    return round(LEFT + (index / Math.max(1, this.atS.length - 1)) * (this.width - LEFT - RIGHT));
  }

  y(value) {
    return round(TOP + (1 - value / this.top) * (HEIGHT - TOP - BOTTOM));
  }

  path(index) {
    const values = this.values[index];
    let drawn = "";
    values.forEach((value, at) => {
      if (!isKnown(value)) return;
      const isFirst = !isKnown(values[at - 1]);
      drawn += `${isFirst ? "M" : "L"}${this.x(at)} ${this.y(value)}`;
      if (isFirst && !isKnown(values[at + 1])) drawn += "h0.1";
    });
    return drawn;
  }

  drawCross() {
    const index = this.at;
    const known = index === null ? [] : this.series.map((each, of) => ({...each, value: this.values[of][index]}))
      .filter(({value}) => isKnown(value));
    const shapes = index === null ? [] : [{name: "line"}, ...known];
    sync(this.cross, shapes, (shape) => shape.name, (shape) => (shape.name === "line" ? svg("path") :
      svg("circle", {r: 3.5, className: shape.className})), (node, shape) => {
      if (shape.name === "line") return setAttribute(node, "d", `M${this.x(index)} ${TOP}V${HEIGHT - BOTTOM}`);
      setAttribute(node, "cx", this.x(index));
      setAttribute(node, "cy", this.y(shape.value));
    });
    setText(this.readout, this.words(index));
  }

  words(index) {
    if (!this.atS.length) return "nothing yet";
    const told = this.series.map(({name}, of) => `${this.series.length > 1 ? `${name} ` : ""}${this.format(index === null ? lastKnown(this.values[of]) : this.values[of][index])}`);
    return `${index === null ? "last" : clock(this.atS[index])}: ${told.join(" \u00b7 ")}`;
  }

  fillTable() {
    if (!this.details.open) return;
    const rows = this.atS.map((at, index) => ({at, index})).reverse();
    sync(this.table.tBodies[0], rows, ({at}) => at,
      () => el("tr", {}, el("th", {scope: "row"}), ...this.series.map(() => el("td", {className: "n"}))), (row, {at, index}) => {
        setText(row.cells[0], clock(at));
        this.series.forEach((_, of) => setText(row.cells[of + 1], this.format(this.values[of][index])));
      });
  }
}

function placeText(text, words, x, y, anchor) {
  setAttribute(text, "x", x);
  setAttribute(text, "y", y);
  setAttribute(text, "text-anchor", anchor);
  setText(text, words === UNKNOWN ? "" : words);
}

const round = (value) => Math.round(value * 10) / 10;

function lastKnown(values) {
  return values.findLast(isKnown) ?? null;
}

/** Four round steps; no more than `most`. */
function niceTop(value, most) {
  if (!(value > 0)) return Math.min(1, most);
  const power = 10 ** Math.floor(Math.log10(value / 4));
  const step = [1, 2, 3, 4, 5, 6, 8, 10].map((factor) => factor * power).find((candidate) => 4 * candidate >= value * 0.9999);
  return Math.min(4 * (step ?? value), most);
}

/** A small line without axes, for a key figure. */
export function drawSparkline(plot, values) {
  const known = values.filter(isKnown);
  const top = Math.max(...known, 1e-12);
  setAttribute(plot, "viewBox", `0 0 ${Math.max(1, values.length - 1)} 24`);
  setVariable(plot, "--seen", known.length ? "1" : "0");
  let drawn = "", wasKnown = false;
  values.forEach((value, at) => {
    if (isKnown(value)) drawn += `${wasKnown ? "L" : "M"}${at} ${round(22 - (value / top) * 20)}${wasKnown ? "" : "h0.1"}`;
    wasKnown = isKnown(value);
  });
  setAttribute(plot.firstChild, "d", drawn);
}
