// Lines between the cards of the topology: prompts go down a lane on the left of a pool, output comes up a lane on its
// right, KV crosses from one pool to the other. Width grows with the tokens; dashes move with them, unless the viewer
// wants no motion. Knows only where cards are and what flows.

import {setAttribute, setText, setVariable, svg, sync} from "./dom.js";
import {rate} from "./numbers.js";

const LANE = 15;  // between a card and its lane
const BEND = 7;
const MAX_HANDOFFS = 60;  // lines; the widest are drawn

/** `cards`: of workers by their key (see peers). */
export function drawFlows(lines, parent, gateways, cards, flows) {
  const origin = parent.getBoundingClientRect();
  if (!origin.width) return;
  setAttribute(lines, "viewBox", `0 0 ${origin.width} ${origin.height}`);
  const box = (node) => {
    const {left, right, top, bottom} = node.getBoundingClientRect();
    return {left: left - origin.left, right: right - origin.left, top: top - origin.top, middle: (top + bottom) / 2 - origin.top};
  };
  const boxes = new Map([...cards].map(([key, card]) => [key, box(card)]));
  const from = gateways.getBoundingClientRect().bottom - origin.top;
  const drawn = [...lanes(flows, boxes, "prompt", from), ...lanes(flows, boxes, "output", from), ...crossings(flows, boxes, from)];
  sync(lines, drawn, (line) => line.key, () => svg("g", {}, svg("path", {className: "track"}), svg("path", {className: "tokens"}), svg("text")), fill);
}

function fill(group, line) {
  const [track, tokens, text] = group.children;
  setAttribute(group, "class", `flow ${line.kind}`);
  for (const path of [track, tokens]) setAttribute(path, "d", line.d);
  setVariable(group, "--wide", `${width(line.tokensPerS).toFixed(1)}px`);
  setVariable(group, "--lasts", `${pace(line.tokensPerS)}s`);
  setAttribute(text, "x", line.at[0]);
  setAttribute(text, "y", line.at[1]);
  setAttribute(text, "text-anchor", line.anchor);
  setText(text, line.isLabelled ? `${rate(line.told ?? line.tokensPerS)} tok/s` : "");
}

const width = (tokensPerS) => 1.5 + Math.min(9, 1.8 * Math.log10(1 + tokensPerS));

/** Few steps: a new duration starts an animation over. */
const pace = (tokensPerS) => (tokensPerS > 1000 ? 0.8 : tokensPerS > 50 ? 1.6 : 3.2);

/** Of prompts or outputs: per worker a branch, from worker to worker the lane with what goes further. */
function lanes(flows, boxes, kind, from) {
  const perWorker = new Map();
  let unseen = 0;  // of workers without a card: told with the first lane
  for (const flow of flows.filter((each) => each.kind === kind)) {
    const key = `${flow.model}\u0000${kind === "prompt" ? flow.target : flow.source}`;
    if (boxes.has(key)) perWorker.set(key, (perWorker.get(key) ?? 0) + flow.tokens_per_s);
    else unseen += flow.tokens_per_s;
  }
  const byLane = new Map();
  for (const [key, tokensPerS] of perWorker) {
    if (!tokensPerS) continue;
    const card = boxes.get(key);
    const x = kind === "prompt" ? card.left - LANE : card.right + LANE;
    if (!byLane.has(x)) byLane.set(x, []);
    byLane.get(x).push({key, card, tokensPerS});
  }
  return [...byLane].flatMap(([x, stops], index) =>
    lane(kind, x, from, stops.sort((a, b) => a.card.middle - b.card.middle), index ? 0 : unseen));
}

function lane(kind, x, from, stops, unseen) {
  const drawn = [];
  let y = from, rest = stops.reduce((sum, stop) => sum + stop.tokensPerS, 0);
  const isDown = kind === "prompt";
  stops.forEach(({key, card, tokensPerS}, index) => {
    const edge = isDown ? card.left : card.right;
    const bend = isDown ? x + BEND : x - BEND;
    const end = card.middle;
    const path = isDown ? `M${x} ${y}V${end - BEND}` : `M${x} ${end - BEND}V${y}`;
    const label = {at: [isDown ? x + 6 : x - 6, from + 15], anchor: isDown ? "start" : "end", isLabelled: index === 0, told: rest + unseen};
    drawn.push({key: `${kind} lane ${key}`, kind, d: path, tokensPerS: rest, ...label});
    const branch = isDown ? `M${x} ${end - BEND}Q${x} ${end} ${bend} ${end}H${edge}` : `M${edge} ${end}H${bend}Q${x} ${end} ${x} ${end - BEND}`;
    drawn.push({key: `${kind} ${key}`, kind, d: branch, tokensPerS, at: [0, 0], anchor: "start", isLabelled: false});
    rest -= tokensPerS;
    y = end - BEND;
  });
  return drawn;
}

/** One of them bears the sum of all. */
function crossings(flows, boxes, top) {
  const known = flows.filter((flow) => flow.kind === "handoff" && flow.tokens_per_s > 0)
    .map((flow) => ({flow, from: boxes.get(`${flow.model}\u0000${flow.source}`), to: boxes.get(`${flow.model}\u0000${flow.target}`)}))
    .filter(({from, to}) => from && to)
    .sort((a, b) => b.flow.tokens_per_s - a.flow.tokens_per_s).slice(0, MAX_HANDOFFS);
  const drawn = known.map(({flow, from, to}) => {
    const isBeside = to.left >= from.right;
    const middle = (from.right + to.left) / 2;
    const d = isBeside ? `M${from.right} ${from.middle}C${middle} ${from.middle} ${middle} ${to.middle} ${to.left} ${to.middle}`
      : around(from, to);
    const at = isBeside ? [middle, (from.middle + to.middle) / 2 - 8] : [from.left + 8, (from.middle + to.middle) / 2];
    return {key: `handoff ${flow.model} ${flow.source} ${flow.target}`, kind: "handoff", d, tokensPerS: flow.tokens_per_s, at,
      anchor: isBeside ? "middle" : "start", isLabelled: false};
  });
  const beside = known.findIndex(({from, to}) => to.left >= from.right);
  if (beside >= 0) {
    const {from, to} = known[beside];
    Object.assign(drawn[beside], {at: [(from.right + to.left) / 2, top + 34], anchor: "middle", isLabelled: true,
      told: known.reduce((sum, {flow}) => sum + flow.tokens_per_s, 0)});
  }
  return drawn;
}

/** Where the pools stand one below the other: out on the right of one card, back in on the right of the other. */
function around(from, to) {
  const x = Math.max(from.right, to.right) + LANE / 2;
  return `M${from.right} ${from.middle}H${x - BEND}Q${x} ${from.middle} ${x} ${from.middle + BEND}V${to.middle - BEND}Q${x} ${to.middle} ${x - BEND} ${to.middle}H${to.right}`;
}
