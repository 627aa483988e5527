// What is cached: the share of prompt tokens that no worker had to compute, and whose the KV blocks are.

import {byId} from "./dom.js";
import {LineChart} from "./line-chart.js";
import {count, percent} from "./numbers.js";
import {keyOf} from "./peers.js";
import {drawBar, Rows} from "./table.js";

const STATES = ["held", "reusable", "free", "quarantined"];

export class Cache {
  constructor() {
    this.hits = new LineChart(byId("cache-charts"), {title: "Hit ratio", series: [{name: "of prompt tokens", className: "first"}],
      format: percent, leastTop: 1, most: 1});
    const n = (show) => ({kind: "n", show: (worker) => count(show(worker))});
    this.blocks = new Rows(byId("blocks"), [
      {kind: "name", show: (worker) => worker.worker_id},
      {className: "wide", draw: drawBlocks},
      ...STATES.map((state) => n((worker) => worker.blocks[`num_${state}`])), n((worker) => worker.blocks.num_total),
      n((worker) => worker.totals.num_prefix_queries), n((worker) => worker.totals.num_prefix_hits),
      {kind: "n", show: (worker) => percent(worker.rates.hit_fraction)}, n((worker) => worker.totals.num_preemptions),
    ], keyOf, "There are no workers.");
  }

  show(state, chosen) {
    this.blocks.show(state.workers.filter((worker) => chosen.has(worker.model)));
    const past = state.history?.models.find((each) => each.model === chosen.one);
    if (past) this.hits.show(state.history.at_unix_s, [past.hit_fraction]);
  }
}

function drawBlocks(cell, {blocks}) {
  drawBar(cell, STATES.filter((state) => state !== "free")
    .map((state) => ({name: state, fraction: blocks.num_total ? blocks[`num_${state}`] / blocks.num_total : 0})));
}
