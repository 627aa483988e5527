// Which worker is slow beside its peers, those of its model and role, and what that lies in: its own pace or its load.
// Steps are compared for the same work: how long a worker's take, beside what the costs that its peers measured say of
// such a step. Where nothing runs, what one step would cost each. Gaps between tokens tell what clients feel.

import {duration, isKnown, times} from "./numbers.js";

const SLOW_RATIO = 1.5;  // arbitrary: what two equal workers do not reach for long
const LEAST_S = 0.001;  // differences below it are no one's trouble
const MIN_SAMPLES = 20;  // gaps
const MAX_ASKED = 50;  // workers whose costs say what a step usually takes; above as many, one's own value moves no median
const NEW_WEIGHT = 0.15;  // of the newest second in what is remembered: a moment flags none, half a minute does

export const keyOf = (worker) => `${worker.model}\u0000${worker.worker_id}`;

export class Peers {
  constructor() {
    this.paces = new Map();  // by worker: smoothed {tookS, numTokens, numKvTokens} of a step
  }

  /** Verdicts by worker; `level`: "slow" (its steps cost more), "crowded" (it has more to do), "down" or "". */
  compare(workers) {
    this.notePaces(workers);
    const found = new Map();
    for (const group of groups(workers).values()) {
      const steps = this.stepsOf(group);
      const gapsS = group.map(gapS), peersS = mediansOfOthers(gapsS);
      const most = {stepS: mostOf([...steps.values()].flatMap(({own, peers}) => [own, peers])), gapS: mostOf(gapsS)};
      group.forEach((worker, index) => {
        const gap = {own: gapsS[index], peers: peersS[index]};
        found.set(keyOf(worker), verdict(worker, group, {...steps.get(keyOf(worker))}, gap, most));
      });
    }
    return found;
  }

  notePaces(workers) {
    const here = new Set(workers.map(keyOf));
    for (const key of this.paces.keys()) if (!here.has(key)) this.paces.delete(key);
    for (const worker of workers) {
      const pace = paceOf(worker), key = keyOf(worker), known = this.paces.get(key);
      if (!pace) continue;
      if (!known || known.epoch !== worker.epoch) this.paces.set(key, {...pace, epoch: worker.epoch});
      else for (const name of Object.keys(pace)) known[name] += NEW_WEIGHT * (pace[name] - known[name]);
    }
  }

  /** Of each worker {own, peers}: its step, and as long as its peers take for the same. */
  stepsOf(group) {
    const paces = group.map((worker) => this.paces.get(keyOf(worker)));
    if (paces.filter(Boolean).length < 2) {
      const load = typicalLoad(group);
      const costs = group.map((worker) => costS(worker, load)), peers = mediansOfOthers(costs);
      return new Map(group.map((worker, index) => [keyOf(worker), {own: costs[index], peers: peers[index]}]));
    }
    const asked = group.slice(0, MAX_ASKED);
    const usual = paces.map((pace) => pace && median(asked.map((each) => costS(each, pace)).filter(isKnown)));
    const strains = paces.map((pace, index) => pace && pace.tookS / usual[index]);
    const others = mediansOfOthers(strains);
    return new Map(group.map((worker, index) => {
      const isCompared = paces[index] && isKnown(others[index]);
      return [keyOf(worker), {own: paces[index]?.tookS ?? null, peers: isCompared ? others[index] * usual[index] : null}];
    }));
  }
}

/** A step of the last seconds, from what its worker counts; null: hardly one was made. */
function paceOf({rates, busy_fraction: busy, num_decode_kv_tokens: numKvTokens}) {
  if (!isKnown(busy) || !(rates.steps_per_s >= 1)) return null;
  const numTokens = ((rates.prefill_tokens_per_s ?? 0) + (rates.generation_tokens_per_s ?? 0)) / rates.steps_per_s;
  return {tookS: busy / rates.steps_per_s, numTokens, numKvTokens};
}

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
  const mean = (name) => group.reduce((sum, worker) => sum + worker[name], 0) / group.length;
  return {numTokens: Math.max(1, mean("num_running")), numKvTokens: mean("num_decode_kv_tokens")};
}

function costS({costs}, {numTokens, numKvTokens}) {
  const tookS = costs.base_s + costs.per_token_s * numTokens + costs.per_kv_token_s * numKvTokens;
  return tookS > 0 ? tookS : null;
}

const gapS = (worker) => (worker.itl.num_samples >= MIN_SAMPLES ? worker.itl.p50_s : null);

function verdict(worker, group, step, gap, most) {
  const stepRatio = stands(step), gapRatio = stands(gap);
  step.standsOut = stepRatio !== null;
  gap.standsOut = gapRatio !== null;
  const told = {level: "", ratio: null, sentence: "", step, gap, mostStepS: most.stepS, mostGapS: most.gapS};
  if (!worker.is_ready) return {...told, level: "down", sentence: worker.why_not_ready || "it is not ready"};
  if (stepRatio) {
    return {...told, level: "slow", ratio: stepRatio, sentence: `its steps take ${times(stepRatio)} as long as its peers' for the ` +
      `same work (${duration(step.own)} against ${duration(step.peers)})`};
  }
  if (gapRatio) {
    return {...told, level: "crowded", ratio: gapRatio, sentence: `its tokens come ${times(gapRatio)} as far apart as its ` +
      `peers' (${duration(gap.own)} against ${duration(gap.peers)}) and the same work takes it no longer: ${whatItHas(worker, group)}`};
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

/** By place: the median of what the others have. */
function mediansOfOthers(values) {
  if (values.length > MAX_ASKED) return new Array(values.length).fill(median(values.filter(isKnown)));
  return values.map((_, index) => median(values.filter((value, other) => other !== index && isKnown(value))));
}

const mostOf = (measures) => measures.filter(isKnown).reduce((most, each) => Math.max(most, each), 0);
