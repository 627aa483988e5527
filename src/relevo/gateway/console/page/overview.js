// The first view: is all well, which worker is not, and the figures of the last minute.

import {byId, el, setAttribute, setText, svg, sync} from "./dom.js";
import {drawSparkline} from "./line-chart.js";
import {age, bytes, count, duration, percent, rate, UNKNOWN} from "./numbers.js";
import {keyOf, Peers} from "./peers.js";
import {Rows, share} from "./table.js";
import {shortened, visible} from "./text.js";
import {Topology} from "./topology.js";

const sum = (counts) => Object.values(counts).reduce((total, each) => total + each, 0);
const stateOf = (worker, verdict) => (worker.is_ready ? verdict.level || "ready" : `not ready: ${worker.why_not_ready}`);

export class Overview {
  constructor(drain) {
    this.topology = new Topology(byId("topology"));
    this.verdicts = new Map();
    this.peers = new Peers();
    this.mayDrain = false;
    const verdict = (worker) => this.verdicts.get(keyOf(worker));
    const of = (show) => ({kind: "n", show});
    this.workers = new Rows(byId("workers"), [
      {kind: "name", show: (worker) => worker.worker_id},
      {kind: "text", show: (worker) => worker.role},
      {kind: "text", draw: (cell, worker) => drawState(cell, stateOf(worker, verdict(worker)), verdict(worker).level)},
      of((worker) => duration(verdict(worker).step.own)), of((worker) => duration(verdict(worker).step.peers)),
      of((worker) => duration(worker.itl.p50_s)), of((worker) => duration(worker.itl.p99_s)),
      of((worker) => percent(worker.busy_fraction)), {kind: "text", show: limitOf},
      of((worker) => count(worker.num_running)), of((worker) => count(worker.num_waiting + worker.num_reserved)),
      of((worker) => count(worker.num_waiting_prefill_tokens)),
      of((worker) => share(worker.blocks.num_held, worker.blocks.num_total)),
      of((worker) => percent(worker.rates.hit_fraction)),
      of((worker) => rate(worker.rates.prefill_tokens_per_s)), of((worker) => rate(worker.rates.generation_tokens_per_s)),
      of((worker) => bytes(worker.totals.transferred_bytes)),
      of((worker) => count(worker.totals.num_preemptions)), of((worker) => count(worker.totals.num_restarts)),
      {className: "admin", draw: (cell, worker) => drain.draw(cell, worker, this.mayDrain)},
    ], keyOf, "There are no workers.");
    this.totals = new Rows(byId("totals"), [
      {kind: "name", show: (model) => model.name}, {kind: "text", show: (model) => model.topology},
      {kind: "text", draw: (cell, model) => drawState(cell, model.is_ready ? "ready" : `not ready: ${model.reason}`, model.is_ready ? "" : "down")},
      of((model) => count(model.num_in_flight)), of((model) => count(model.num_queued)),
      of((model) => count(sum(model.totals.num_requests))), of((model) => count(sum(model.totals.num_refusals))),
      of((model) => count(model.totals.num_prompt_tokens)), of((model) => count(model.totals.num_cached_tokens)),
      of((model) => count(sum(model.totals.num_handoffs))),
    ], (model) => model.name, "There are no models.");
    this.gateways = new Rows(byId("gateways"), [
      {kind: "name", show: (gateway) => gateway.gateway_id || "the only one"},
      {kind: "text", show: (gateway) => (!gateway.answers ? "does not answer" : gateway.is_draining ? "stopping" : gateway.is_ready ? "ready" : "not ready")},
      of((gateway) => age(gateway.uptime_s)), of((gateway) => count(gateway.num_in_flight)),
    ], (gateway) => gateway.gateway_id, "There are no gateways.");
  }

  show(state, chosen) {
    const workers = state.workers.filter((worker) => chosen.has(worker.model));
    this.verdicts = this.peers.compare(workers);
    this.mayDrain = state.viewer.is_admin;
    byId("workers").dataset.admin = state.viewer.is_admin ? "yes" : "no";
    this.drawVerdict(state, workers);
    drawFigures(state, chosen);
    this.topology.show(state.gateways, workers, state.flows.filter((flow) => chosen.has(flow.model)), this.verdicts);
    this.workers.show(workers.map((worker) => ({...worker, isLast: isLast(worker, workers)})));
    this.totals.show(state.models.filter((model) => chosen.has(model.name)));
    this.gateways.show(state.gateways);
  }

  /** One sentence per worker that stands out, or that none does. */
  drawVerdict(state, workers) {
    const parts = [];
    if (state.server.failure) parts.push({level: "down", name: "No request is taken", words: state.server.failure});
    else if (!state.server.is_ready) parts.push({level: "down", name: "Not ready", words: state.models.map((model) => model.reason).filter(Boolean).join("; ")});
    for (const worker of workers) {
      const {level, sentence} = this.verdicts.get(keyOf(worker));
      if (level) parts.push({level, name: worker.worker_id, words: sentence});
    }
    const told = parts.slice(0, 5);
    if (!told.length) told.push({level: "", name: "All is well", words: wellWords(workers, this.verdicts)});
    if (parts.length > 5) told.push({level: "down", name: `${parts.length - 5} more`, words: "see the table"});
    sync(byId("verdict"), told, (part) => `${part.level} ${part.name}`, () => el("span", {}, el("strong"), el("span")), (node, part) => {
      setAttribute(node, "data-level", part.level);
      setText(node.firstChild, shortened(part.name, 40));
      setText(node.children[1], part.words ? `: ${shortened(part.words, 300)}.` : ".");
    });
  }
}

function wellWords(workers, verdicts) {
  const hasPeers = workers.some((worker) => verdicts.get(keyOf(worker)).step.peers !== null);
  return `${count(workers.length)} ${workers.length === 1 ? "worker is" : "workers are"} ready${hasPeers ? " and none is slower than its peers" : ""}`;
}

function isLast(worker, workers) {
  return workers.filter((other) => other.model === worker.model && other.role === worker.role && other.is_ready).length <= 1;
}

function drawState(cell, words, level) {
  if (!cell.firstChild) cell.append(el("span", {className: "state"}));
  setAttribute(cell.firstChild, "data-level", level);
  setText(cell.firstChild, shortened(words, 60));
  setAttribute(cell.firstChild, "title", visible(words));
}

function limitOf(worker) {
  if (!worker.limit) return UNKNOWN;
  return worker.limit_fraction === null ? worker.limit : `${worker.limit} ${percent(worker.limit_fraction)}`;
}

function drawFigures(state, chosen) {
  const latency = state.latency.find((each) => each.model === chosen.one);
  const past = state.history?.models.find((each) => each.model === chosen.one);
  const models = state.models.filter((model) => chosen.has(model.name));
  const total = (name) => models.reduce((all, model) => all + model[name], 0);
  const perS = (values) => values?.map((value) => value / state.history.interval_s);
  const figures = [
    ["TTFT", duration(latency?.ttft.p50_s), `p99 ${duration(latency?.ttft.p99_s)}`, past?.ttft_p50_s],
    ["ITL", duration(latency?.itl.p50_s), `p99 ${duration(latency?.itl.p99_s)}`, past?.itl_p50_s],
    ["Output", rate(latency?.output_tokens_per_s), "tokens/s", perS(past?.num_output_tokens)],
    ["Requests", rate(latency?.requests_per_s), "ended/s", perS(past?.num_requests)],
    ["Hit ratio", percent(latency?.hit_fraction), "of prompt tokens", past?.hit_fraction],
    ["In flight", count(total("num_in_flight")), `${count(total("num_queued"))} queued`, past?.num_queued],
  ];
  sync(byId("key-figures"), figures, ([name]) => name, ([name]) => el("li", {}, el("span", {className: "name", text: name}),
    el("strong"), el("span", {className: "quiet"}), svg("svg", {className: "spark", preserveAspectRatio: "none", "aria-hidden": "true"}, svg("path"))),
  (node, [, value, more, values]) => {
    setText(node.children[1], value);
    setText(node.children[2], more);
    drawSparkline(node.children[3], values ?? []);
  });
}
