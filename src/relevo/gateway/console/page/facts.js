// What was beside a phase, in the words of `relevo why`. A fact that is not known here is told by its name.

import {bytes, count, duration, isKnown} from "./numbers.js";
import {shortened} from "./text.js";

const LINKS = {memory: "shared memory", box: "the machine's own network", network: "the network"};
const of = (num, noun) => `${count(num)} ${noun}${num === 1 ? "" : "s"}`;

/** Names that are told together, and how; empty words are left out. */
const TOLD = [
  [["num_ahead"], (num) => num && `${count(num)} ahead`],
  [["num_running"], (num) => num && `${of(num, "stream")} there`],
  [["num_waiting"], (num) => num && `${count(num)} waiting`],
  [["num_waiting_prefill_tokens"], (num) => num && `${of(num, "prompt token")} ahead`],
  [["num_free_blocks", "num_total_blocks"], (free, total) => `${count(free)} of ${of(total, "block")} free`],
  [["num_prompt_tokens", "num_cached_tokens"], (prompt, cached) => `${of(prompt, "token")}, ${count(cached)} of them cached`],
  [["num_chunks"], (num) => num && of(num, "chunk")],
  [["num_lost_hit_tokens", "hits_lost"], (num, why) => `${count(num)} had been cached (${shortened(why, 40).replaceAll("_", " ")})`],
  [["num_neighbour_prompt_tokens"], (num) => num && `${of(num, "prompt token")} of others`],
  [["link", "transferred_bytes", "transfer_s"], (link, sent, tookS) =>
    (sent ? `${bytes(sent)} over ${linkName(link)} in ${duration(tookS)}` : `over ${linkName(link)}`)],
  [["num_steps", "num_generation_tokens"], (steps, tokens) => `${of(steps, "step")}, ${(tokens / Math.max(steps, 1)).toFixed(1)} tokens each`],
  [["failure"], (text) => shortened(text, 200)],
];

const linkName = (link) => (Object.hasOwn(LINKS, link) ? LINKS[link] : shortened(link, 40));

export function factWords(facts) {
  const left = new Map(Object.entries(facts ?? {}));
  const told = [];
  for (const [names, words] of TOLD) {
    if (!names.every((name) => left.has(name))) continue;
    told.push(words(...names.map((name) => left.get(name))));
    names.forEach((name) => left.delete(name));
  }
  return [...told.filter(Boolean), ...[...left].map(([name, value]) => `${shortened(name, 40)} ${plain(value)}`)].join(", ");
}

function plain(value) {
  return isKnown(value) ? Number(value.toPrecision(4)) : shortened(value, 80);
}
