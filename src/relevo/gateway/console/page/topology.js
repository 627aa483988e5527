// The server as a picture: gateways above, the pools of workers below, and between them the tokens that flow. Cards are
// HTML, so that text wraps and is read aloud; `flows` draws the lines between them.

import {el, setAttribute, setText, setVariable, svg, sync} from "./dom.js";
import {drawFlows} from "./flows.js";
import {count, duration, percent, rate, times} from "./numbers.js";
import {keyOf} from "./peers.js";
import {clamp, fillBar, share} from "./table.js";
import {shortened, visible} from "./text.js";

const POOLS = [["prefill", "Prefill"], ["unified", "Prefill and decode"], ["decode", "Decode"]];
const MAX_CARDS = 12;  // of a pool; the table has all of them
const MEASURES = ["step", "ITL", "line", "busy", "limit", "KV", "queue"];
const MARKS = {slow: "slow", crowded: "crowded", down: "not ready"};

export class Topology {
  constructor(parent) {
    this.lines = svg("svg", {className: "flows", "aria-hidden": "true"});
    this.gateways = el("ul", {className: "gateways", "aria-label": "Gateways"});
    this.pools = el("div", {className: "pools"});
    this.parent = parent;
    parent.append(this.lines, this.gateways, this.pools);
    this.shown = null;
    new ResizeObserver(() => this.shown && this.drawLines()).observe(parent);
  }

  /** `workers` and `flows` of what is shown; `verdicts` of `peers`. */
  show(gateways, workers, flows, verdicts) {
    sync(this.gateways, gateways, (gateway) => gateway.gateway_id, gatewayCard, fillGateway);
    const pools = POOLS.map(([role, title]) => ({role, title, workers: firstOf(workers.filter((worker) => worker.role === role), verdicts)}))
      .filter((pool) => pool.workers.length);
    sync(this.pools, pools, (pool) => pool.role, poolCard, (node, pool) => {
      setText(node.firstChild, `${pool.title} \u00b7 ${count(workers.filter((worker) => worker.role === pool.role).length)}`);
      sync(node.children[1], pool.workers, keyOf, workerCard, (card, worker) => fillWorker(card, worker, verdicts.get(keyOf(worker))));
      const numMore = workers.filter((worker) => worker.role === pool.role).length - pool.workers.length;
      setText(node.children[2], numMore ? `and ${count(numMore)} more, in the table below` : "");
    });
    this.shown = {flows, pools};
    this.drawLines();
  }

  drawLines() {
    const cards = new Map([...this.pools.querySelectorAll(".worker")].map((card) => [card.relevoKey, card]));
    drawFlows(this.lines, this.parent, this.gateways, cards, this.shown.flows);
  }
}

/** What stands out comes first where not all have room; else as the server lists them. */
function firstOf(workers, verdicts) {
  if (workers.length <= MAX_CARDS) return workers;
  const weight = (worker) => (verdicts.get(keyOf(worker))?.level ? 0 : 1);
  return [...workers].sort((a, b) => weight(a) - weight(b)).slice(0, MAX_CARDS);
}

function gatewayCard() {
  return el("li", {className: "node gateway"}, el("strong"), el("span", {className: "quiet"}));
}

function fillGateway(node, gateway) {
  setText(node.firstChild, gateway.gateway_id ? shortened(gateway.gateway_id, 30) : "gateway");
  const state = !gateway.answers ? "does not answer" : gateway.is_draining ? "stopping" : gateway.is_ready ? "" : "not ready";
  setText(node.children[1], [`${count(gateway.num_in_flight)} in flight`, state].filter(Boolean).join(" \u00b7 "));
  setAttribute(node, "data-level", state ? "down" : "");
}

function poolCard(pool) {
  return el("section", {className: `pool ${pool.role}`, "aria-label": pool.title}, el("h3"), el("ul"), el("p", {className: "quiet more"}));
}

function workerCard(worker) {
  const measure = (name, className) => el("div", {className: `measure ${className.toLowerCase()}`}, el("dt", {text: name}),
    el("dd", {className: "bar", "aria-hidden": "true"}), el("dd", {className: "value"}));
  const card = el("li", {className: `node worker ${worker.role}`},
    el("h4", {}, el("bdi"), el("span", {className: "flag"})),
    el("dl", {}, ...MEASURES.map((name) => measure(name, name))),
    el("p", {className: "quiet now"}));
  card.relevoKey = keyOf(worker);
  return card;
}

function fillWorker(card, worker, verdict) {
  const [head, measures, now] = card.children;
  setText(head.firstChild, shortened(worker.worker_id, 30));
  setAttribute(head.firstChild, "title", visible(worker.worker_id));
  setText(head.children[1], flag(verdict));
  setAttribute(card, "data-level", verdict.level);
  const [step, itl, line, busy, limit, kv, queue] = measures.children;
  pace(step, verdict.step, verdict.mostStepS, verdict.level);
  pace(itl, verdict.gap, verdict.mostGapS, verdict.level);
  const isPrefill = worker.role === "prefill";
  itl.hidden = isPrefill;
  line.hidden = !isPrefill;
  bar(line, [{name: "fill", fraction: filling(worker.num_waiting_prefill_tokens, worker.step_budget_tokens)}], count(worker.num_waiting_prefill_tokens));
  setText(limit.firstChild, worker.limit ? shortened(worker.limit, 12) : "limit");
  bar(limit, [{name: "fill", fraction: worker.limit_fraction}], percent(worker.limit_fraction));
  bar(busy, [{name: "fill", fraction: worker.busy_fraction}], percent(worker.busy_fraction));
  const {num_total: numTotal, num_held: numHeld, num_reusable: numReusable} = worker.blocks;
  bar(kv, [{name: "held", fraction: numHeld / numTotal}, {name: "reusable", fraction: numReusable / numTotal}], share(numHeld, numTotal));
  const numWaiting = worker.num_waiting + worker.num_reserved;
  bar(queue, [{name: "fill", fraction: filling(numWaiting, 8)}], count(numWaiting));
  setText(now, doing(worker));
}

function flag(verdict) {
  if (!verdict.level) return "";
  return verdict.ratio ? `${MARKS[verdict.level]} ${times(verdict.ratio)}` : MARKS[verdict.level];
}

/** Its own, marked where it stands out, as a bar of the largest in its pool, its peers' median as a mark on it. */
function pace(node, measure, most, level) {
  setAttribute(node, "data-level", measure.standsOut ? level : null);
  bar(node, [{name: "fill", fraction: most ? measure.own / most : null}], duration(measure.own));
  node.children[1].classList.toggle("marked", Boolean(measure.peers && most));
  if (measure.peers && most) setVariable(node.children[1], "--mark", `${(100 * clamp(measure.peers / most)).toFixed(1)}%`);
}

/** A queue has no end: half a bar is `usual`. */
const filling = (num, usual) => num / (num + usual);

function bar(node, parts, words) {
  fillBar(node.children[1], parts);
  setText(node.children[2], words);
}

function doing(worker) {
  const told = [];
  if (worker.role !== "prefill") told.push(`${count(worker.num_running)} running`);
  if (worker.rates.prefill_tokens_per_s) told.push(`${rate(worker.rates.prefill_tokens_per_s)} prompt tok/s`);
  if (worker.rates.generation_tokens_per_s) told.push(`${rate(worker.rates.generation_tokens_per_s)} output tok/s`);
  if (worker.role !== "prefill" && worker.num_waiting_prefill_tokens) told.push(`${count(worker.num_waiting_prefill_tokens)} prompt tokens in line`);
  return told.length ? told.join(" \u00b7 ") : "idle";
}
