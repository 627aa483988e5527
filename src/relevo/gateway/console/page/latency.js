// TTFT and ITL over ten minutes, and what a minute of each model came to.

import {byId} from "./dom.js";
import {LineChart} from "./line-chart.js";
import {duration, percent, rate} from "./numbers.js";
import {Rows} from "./table.js";

const QUANTILES = [{name: "p50", className: "first"}, {name: "p90", className: "second"}, {name: "p99", className: "third"}];
const COLUMNS = (name) => [`${name}_p50_s`, `${name}_p90_s`, `${name}_p99_s`];

export class Latency {
  constructor() {
    const parent = byId("latency-charts");
    this.ttft = new LineChart(parent, {title: "Time to first token", series: QUANTILES, format: duration, leastTop: 0.001});
    this.itl = new LineChart(parent, {title: "Inter-token latency", series: QUANTILES, format: duration, leastTop: 0.001});
    this.output = new LineChart(parent, {title: "Output tokens per second", series: [{name: "tokens/s", className: "first"}], format: rate, leastTop: 1});
    this.requests = new LineChart(parent, {title: "Requests per second", format: rate, leastTop: 0.1,
      series: [{name: "ended", className: "first"}, {name: "refused", className: "third"}]});
    const n = (show) => ({kind: "n", show});
    this.now = new Rows(byId("latency-now"), [
      {kind: "name", show: (each) => each.model || "all models"},
      n((each) => duration(each.ttft.p50_s)), n((each) => duration(each.ttft.p90_s)), n((each) => duration(each.ttft.p99_s)),
      n((each) => duration(each.itl.p50_s)), n((each) => duration(each.itl.p90_s)), n((each) => duration(each.itl.p99_s)),
      n((each) => duration(each.e2e.p50_s)), n((each) => duration(each.e2e.p99_s)),
      n((each) => rate(each.requests_per_s)), n((each) => rate(each.output_tokens_per_s)), n((each) => percent(each.hit_fraction)),
    ], (each) => each.model, "Nothing was measured yet.");
  }

  show(state, chosen) {
    this.now.show(state.latency);
    const past = state.history?.models.find((each) => each.model === chosen.one);
    if (!past) return;
    const {at_unix_s: atS, interval_s: intervalS} = state.history;
    this.ttft.show(atS, COLUMNS("ttft").map((name) => past[name]));
    this.itl.show(atS, COLUMNS("itl").map((name) => past[name]));
    this.output.show(atS, [past.num_output_tokens.map((num) => num / intervalS)]);
    this.requests.show(atS, [past.num_requests, past.num_refusals].map((values) => values.map((num) => num / intervalS)));
  }
}
