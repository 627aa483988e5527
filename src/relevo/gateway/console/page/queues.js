// What waits in the gateways, of which class and tenant, what was refused, and what keys have left.

import {byId} from "./dom.js";
import {LineChart} from "./line-chart.js";
import {count, duration, isKnown, percent, UNKNOWN} from "./numbers.js";
import {drawBar, Rows} from "./table.js";

const tenantName = (line) => line.tenant || (line.is_own ? "you" : `tenant ${line.number}`);

export class Queues {
  constructor() {
    this.queued = new LineChart(byId("queue-charts"), {title: "Held back by the gateways", series: [{name: "requests", className: "first"}],
      format: count, leastTop: 4});
    const n = (show) => ({kind: "n", show});
    this.lines = new Rows(byId("lines"), [
      {kind: "name", show: (line) => line.model}, {kind: "text", show: (line) => line.class_name},
      n((line) => count(line.num_waiting)), n((line) => duration(line.oldest_wait_s)),
    ], (line) => `${line.model}\u0000${line.class_name}`, "Nothing waits.");
    this.tenants = new Rows(byId("tenants"), [
      {kind: "name", show: tenantName}, {kind: "name", show: (line) => line.model},
      n((line) => count(line.num_waiting)), n((line) => count(line.num_waiting_batch)), n((line) => count(line.num_sent)),
    ], (line) => `${line.model}\u0000${line.number}`, "No tenant has a request here.");
    this.refusals = new Rows(byId("refusals"), [
      {kind: "name", show: (each) => each.model}, {kind: "text", show: (each) => each.limit}, n((each) => count(each.num)),
    ], (each) => `${each.model}\u0000${each.limit}`, "Nothing was refused.");
    this.budgets = new Rows(byId("budgets"), [
      {kind: "name", show: (each) => each.key_prefix || each.key_id}, {kind: "name", show: (each) => each.name}, {kind: "name", show: (each) => each.tenant},
      n((each) => each.spent ?? UNKNOWN), n((each) => each.budget ?? UNKNOWN), {kind: "text", show: (each) => each.period},
      {className: "wide", draw: drawSpent},
      n((each) => count(each.tokens_per_minute)), n((each) => count(each.remaining_tokens)),
    ], (each) => each.key_id, "No key has a limit.");
  }

  show(state, chosen) {
    const ofChosen = (each) => chosen.has(each.model);
    this.lines.show(state.lines.filter(ofChosen));
    this.tenants.show(state.tenants.filter(ofChosen));
    this.refusals.show(state.models.filter((model) => chosen.has(model.name)).flatMap((model) =>
      Object.entries(model.totals.num_refusals).map(([limit, num]) => ({model: model.name, limit, num}))));
    this.budgets.show(state.budgets);
    const past = state.history?.models.find((each) => each.model === chosen.one);
    if (past) this.queued.show(state.history.at_unix_s, [past.num_queued]);
  }
}

function drawSpent(cell, {spent_fraction: fraction}) {
  const part = {name: fraction >= 0.9 ? "alarm" : "fill", fraction};
  drawBar(cell, isKnown(fraction) ? [part] : [], percent(fraction));
}
