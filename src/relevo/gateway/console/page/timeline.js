// One request's timeline, as the server explains it: its own sentence, its advice, its phases. Judges nothing.

import {el, setVariable} from "./dom.js";
import {factWords} from "./facts.js";
import {count, duration, isKnown} from "./numbers.js";
import {shortened, visible} from "./text.js";

const LEAST_WIDTH = 0.3;  // percent of the whole, so that a short phase is seen

/** The inside of the article for what `GET /v1/requests/{id}` told. */
export function drawTimeline(article, told) {
  const spanS = Math.max(told.e2e_s ?? 0, ...told.phases.map((phase) => phase.begins_s + phase.took_s), 1e-9);
  article.replaceChildren(
    el("h2", {id: "told-title", tabindex: "-1"}, "Request ", el("bdi", {text: shortened(told.id, 60), title: visible(told.id)})),
    el("p", {className: "sentence", text: visible(told.sentence)}),
    told.advice ? el("p", {className: "advice"}, el("strong", {text: "What helps: "}), visible(told.advice)) : "",
    figures(told),
    el("div", {className: "scroll", tabindex: "0", role: "group", "aria-label": "Table of phases"}, phases(told, spanS)),
  );
}

function figures(told) {
  const known = [
    ["Cause", told.cause && shortened(told.cause, 60).replaceAll("_", " ")], ["TTFT", isKnown(told.ttft_s) && duration(told.ttft_s)],
    ["E2E", duration(told.e2e_s)], ["Worst gap", isKnown(told.worst_gap_s) && duration(told.worst_gap_s)],
    ["Prompt", isKnown(told.num_prompt_tokens) && promptWords(told)],
    ["Output", isKnown(told.num_output_tokens) && `${count(told.num_output_tokens)} tokens`],
    ["Model", told.model && shortened(told.model, 60)], ["State", [told.state, told.outcome].filter(Boolean).map((word) => shortened(word, 40)).join(", ")],
  ].filter(([, value]) => value);
  return el("dl", {className: "facts-line"}, ...known.flatMap(([name, value]) => [el("dt", {text: name}), el("dd", {}, el("bdi", {text: value}))]));
}

function promptWords(told) {
  const cached = isKnown(told.num_cached_tokens) ? `, ${count(told.num_cached_tokens)} cached` : "";
  return `${count(told.num_prompt_tokens)} tokens${cached}`;
}

function phases(told, spanS) {
  const table = el("table", {className: "numbers phases"},
    el("caption", {text: captionOf(told)}),
    el("thead", {}, el("tr", {}, ...["Phase", "Where", "Took", "Timeline", "Beside it"].map((name) =>
      el("th", {scope: "col", text: name, className: name === "Took" ? "n" : null})))),
    el("tbody", {}, ...told.phases.map((phase) => row(phase, spanS))));
  if (!told.phases.length) table.tBodies[0].append(el("tr", {className: "none"}, el("td", {colspan: 5, text: "No phase was kept."})));
  return table;
}

function captionOf({ttft_s: ttftS}) {
  const change = isKnown(ttftS) ? ` The colour changes with the first token, after ${duration(ttftS)}.` : "";
  return `Its phases, in order; a bar begins where its phase did.${change}`;
}

function row(phase, spanS) {
  const bar = el("i", {className: phase.before_first_token ? "before" : "after"});
  setVariable(bar, "--from", `${((100 * phase.begins_s) / spanS).toFixed(2)}%`);
  setVariable(bar, "--wide", `${Math.max(LEAST_WIDTH, (100 * phase.took_s) / spanS).toFixed(2)}%`);
  return el("tr", {},
    el("th", {scope: "row", text: shortened(phase.name, 40).replaceAll("_", " ")}),
    el("td", {className: "name"}, el("bdi", {text: phase.worker_id ? shortened(phase.worker_id, 40) : "gateway"})),
    el("td", {className: "n", text: duration(phase.took_s)}),
    el("td", {className: "lane"}, el("span", {className: "span", "aria-hidden": "true"}, bar)),
    el("td", {className: "facts", text: factWords(phase.facts)}));
}
