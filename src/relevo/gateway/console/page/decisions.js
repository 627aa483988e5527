// What was decided and why, as it happens: filtered, and held still where one wants to read.

import {byId, el, setText} from "./dom.js";
import {clock, count} from "./numbers.js";
import {drawRequestLink, Rows} from "./table.js";
import {shortened} from "./text.js";

const MAX_SHOWN = 200;

export class Decisions {
  constructor() {
    this.all = [];
    this.held = null;
    this.kinds = new Set();
    this.rows = new Rows(byId("decision-list"), [
      {kind: "text", show: (each) => clock(each.at_unix_s)}, {kind: "text", show: (each) => each.kind},
      {kind: "name", show: (each) => each.worker_id}, {kind: "text", className: "reason", show: (each) => each.reason},
      {className: "name", draw: (cell, each) => drawRequestLink(cell, each.request_id)}, {kind: "text", className: "facts", show: factsOf},
    ], keyOf, "Nothing that matches was decided yet.");
    byId("decision-filters").addEventListener("submit", (event) => event.preventDefault());
    byId("decision-filters").addEventListener("input", () => this.draw());
    byId("decision-hold").addEventListener("click", () => this.hold());
  }

  show(state, chosen) {
    this.all = state.decisions.filter((each) => each.model === "" || chosen.has(each.model));
    this.addKinds();
    this.draw();
  }

  hold() {
    this.held = this.held ? null : this.all;
    byId("decision-hold").setAttribute("aria-pressed", String(Boolean(this.held)));
    this.draw();
  }

  addKinds() {
    for (const {kind} of this.all) {
      if (this.kinds.has(kind)) continue;
      this.kinds.add(kind);
      byId("decision-kind").append(el("option", {value: kind, text: shortened(kind, 40)}));
    }
  }

  draw() {
    const kind = byId("decision-kind").value;
    const wanted = byId("decision-text").value.trim().toLowerCase();
    const all = this.held ?? this.all;
    const found = all.filter((each) => (!kind || each.kind === kind) && (!wanted || words(each).includes(wanted)));
    this.rows.show(found.slice(-MAX_SHOWN).reverse());
    const shown = found.length > MAX_SHOWN ? `the last ${MAX_SHOWN} of ${count(found.length)}` : count(found.length);
    setText(byId("decision-count"), `${shown} of ${count(all.length)} kept`);
  }
}

const keyOf = (each) => `${each.gateway_id}\u0000${each.number}\u0000${each.at_unix_s}`;

function words(each) {
  return [each.kind, each.worker_id, each.request_id, each.reason, each.model, factsOf(each)].join(" ").toLowerCase();
}

function factsOf({facts}) {
  return Object.entries(facts).map(([name, value]) => `${name.replace(/^num_/, "").replaceAll("_", " ")} ${typeof value === "number" && !Number.isInteger(value) ? value.toFixed(3) : value}`).join(", ");
}
