// What the planners decided, newest first, how many workers they want, and the machines, of which there is one.

import {byId, setText} from "./dom.js";
import {clock, count, percent} from "./numbers.js";
import {Rows} from "./table.js";
import {shortened} from "./text.js";

export class Plan {
  constructor() {
    this.rows = new Rows(byId("plan-list"), [
      {kind: "text", show: (each) => clock(each.at_unix_s)}, {kind: "name", show: (each) => each.model},
      {kind: "text", show: (each) => each.verdict}, {kind: "name", show: (each) => each.mode},
      {kind: "n", show: (each) => percent(each.attained)}, {kind: "text", className: "reason", show: (each) => each.reason},
    ], (each) => `${each.model}\u0000${each.at_unix_s}`, "Nothing was decided yet: the first look is a few seconds after the start.");
    this.numbers = new Rows(byId("number-list"), [
      {kind: "name", show: (each) => each.model}, {kind: "n", show: (each) => count(each.there)},
      {kind: "n", show: (each) => count(each.coming)},
      {kind: "n", show: (each) => (each.wanted === null ? "not known yet" : count(each.wanted))},
      {kind: "n", show: (each) => count(each.min_workers)}, {kind: "n", show: (each) => count(each.max_workers)},
      {kind: "text", className: "reason", show: (each) => each.reason},
    ], (each) => each.model, "No number is planned.");
  }

  show(state, chosen) {
    const plans = (state.plan ?? []).filter((each) => chosen.has(each.model));
    byId("plan-some").hidden = !plans.length;
    setText(byId("plan-none"), plans.length ? plans.map(summary).join(" ")
      : "No planner runs: the number of workers and their roles are what the server was started with.");
    this.rows.show(plans.flatMap((plan) => plan.decisions.map((each) => ({...each, model: plan.model})))
      .sort((one, other) => other.at_unix_s - one.at_unix_s));
    const numbers = plans.filter((plan) => plan.workers).map((plan) => ({...plan.workers, model: plan.model}));
    byId("number-some").hidden = !numbers.length;
    this.numbers.show(numbers);
    setText(byId("nodes-none"), state.nodes.length
      ? "There are nodes that this console does not know; GET /v1/state tells of them."
      : "There is one machine, this one: every worker runs where the gateway runs.");
  }
}

function summary({model, mode, is_dry_run: isDry, num_changes: changes, targets}) {
  const said = isDry ? `it would have changed the mode ${count(changes)} times, and does not` : `${count(changes)} changes so far`;
  const aims = Object.entries(targets).map(([name, value]) => `${name} ${value}`).join(", ");
  return `${shortened(model, 40)}: mode ${shortened(mode || "not known yet", 80)}; ${said}; it aims at ${aims}.`;
}
