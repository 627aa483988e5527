// Which worker is slow beside its peers, those of its model and role, and what that lies in: its own pace or its load.
// Two measures: what a step of one and the same size costs each (as each worker measured), and the gaps between tokens.

import {duration, isKnown, times} from "./numbers.js";

const SLOW_RATIO = 1.5;  // arbitrary: what two equal workers do not reach for a minute
const LEAST_S = 0.001;  // differences below it are no one's trouble
const MIN_SAMPLES = 20;  // gaps

/** Verdicts by worker; `level`: "slow" (its steps cost more), "crowded" (it has more to do), "down" or "". */
export function compared(workers) {
  const found = new Map();
  for (const group of groups(workers).values()) {
    const load = typicalLoad(group);
    const steps = new Map(group.map((worker) => [keyOf(worker), stepS(worker, load)]));
    const gaps = new Map(group.map((worker) => [keyOf(worker), gapS(worker)]));
    for (const worker of group) found.set(keyOf(worker), verdict(worker, group, steps, gaps));
  }
  return found;
}

export const keyOf = (worker) => `${worker.model}\u0000${worker.worker_id}`;

function groups(workers) {
  const found = new Map();
  for (const worker of workers) {
    const key = `${worker.model}\u0000${worker.role}`;
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(worker);
  }
  return found;
}

/** One step for all of a group: a chunk where prompts are computed, else what its workers decode on average. */
function typicalLoad(group) {
  if (group[0].role === "prefill") return {numTokens: Math.min(256, Math.max(1, group[0].step_budget_tokens)), numKvTokens: 0};
  const numRunning = group.reduce((sum, worker) => sum + worker.num_running, 0) / group.length;
  const numKvTokens = group.reduce((sum, worker) => sum + worker.num_decode_kv_tokens, 0) / group.length;
  return {numTokens: Math.max(1, numRunning), numKvTokens};
}

function stepS({costs}, {numTokens, numKvTokens}) {
  const costS = costs.base_s + costs.per_token_s * numTokens + costs.per_kv_token_s * numKvTokens;
  return costS > 0 ? costS : null;
}

const gapS = (worker) => (worker.itl.num_samples >= MIN_SAMPLES ? worker.itl.p50_s : null);

function verdict(worker, group, steps, gaps) {
  const key = keyOf(worker);
  const of = (measures) => ({own: measures.get(key), peers: median(group.filter((other) => other !== worker)
    .map((other) => measures.get(keyOf(other))).filter(isKnown))});
  const step = of(steps), gap = of(gaps);
  const told = {level: "", ratio: null, sentence: "", step, gap, mostStepS: most(steps), mostGapS: most(gaps)};
  if (!worker.is_ready) return {...told, level: "down", sentence: worker.why_not_ready || "it is not ready"};
  const stepRatio = stands(step), gapRatio = stands(gap);
  if (stepRatio) {
    const sentence = `its steps take ${times(stepRatio)} as long as its peers' (${duration(step.own)} against ${duration(step.peers)})`;
    return {...told, level: "slow", ratio: stepRatio, sentence};
  }
  if (gapRatio) {
    return {...told, level: "crowded", ratio: gapRatio, sentence: `its tokens come ${times(gapRatio)} as far apart as its ` +
      `peers' (${duration(gap.own)} against ${duration(gap.peers)}) and a step costs it no more: ${whatItHas(worker, group)}`};
  }
  return told;
}

function whatItHas(worker, group) {
  const others = group.filter((other) => other !== worker);
  const peers = (name) => Math.round(median(others.map((other) => other[name])));
  return `it runs ${worker.num_running} (peers ${peers("num_running")}) with ${worker.num_waiting_prefill_tokens} prompt ` +
    `tokens in line (peers ${peers("num_waiting_prefill_tokens")})`;
}

/** How many times its peers' median, where that stands out; else null. */
function stands({own, peers}) {
  if (!isKnown(own) || !isKnown(peers) || peers <= 0) return null;
  return own / peers >= SLOW_RATIO && own - peers >= LEAST_S ? own / peers : null;
}

function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const most = (measures) => Math.max(0, ...[...measures.values()].filter(isKnown));
