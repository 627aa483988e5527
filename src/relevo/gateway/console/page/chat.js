// A conversation with one of the models, and what each answer took: TTFT, tokens per second, cached tokens, workers.

import {ask, refusal} from "./access.js";
import {byId, el, setText} from "./dom.js";
import {events} from "./events.js";
import {count, duration, isKnown} from "./numbers.js";
import {shortened, spoken, visible} from "./text.js";

const WORKERS = /(?:^|\| )(prompt|decode) ([^\s:|]+):/g;
const TEXTS = [["reasoning_content", true], ["reasoning", true], ["content", false], ["refusal", false]];

export class Chat {
  constructor() {
    this.messages = [];
    this.session = crypto.randomUUID?.() ?? `console-${Math.random().toString(36).slice(2)}`;
    this.stopping = null;
    byId("talk-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("talk-text").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        byId("talk-form").requestSubmit(byId("talk-send"));
      }
    });
    byId("talk-stop").addEventListener("click", () => this.stopping?.abort());
    byId("talk-new").addEventListener("click", () => this.begin());
  }

  /** Keeps the choice while the models stay. */
  show(state, chosen) {
    const names = state.models.map((model) => model.name).filter((name) => chosen.has(name));
    const choice = byId("talk-model");
    if (names.join("\u0000") === this.names) return;
    this.names = names.join("\u0000");
    const before = choice.value;
    choice.replaceChildren(...names.map((name) => el("option", {value: name, text: shortened(name, 60)})));
    if (names.includes(before)) choice.value = before;
  }

  begin() {
    this.stopping?.abort();
    this.messages = [];
    this.session = crypto.randomUUID?.() ?? `console-${Math.random().toString(36).slice(2)}`;
    byId("talk").replaceChildren();
    setText(byId("talk-status"), "");
    byId("talk-text").focus();
  }

  async send() {
    const text = byId("talk-text").value.trim();
    if (!text || this.stopping) return;
    byId("talk-text").value = "";
    const messages = this.messages;
    messages.push({role: "user", content: text});
    byId("talk").append(el("li", {className: "asked"}, el("h2", {text: "You"}), el("p", {className: "said", text: spoken(text)})));
    this.stopping = new AbortController();
    this.mark(true);
    const answer = new Answer(byId("talk"), byId("talk-model").value);
    try {
      await answer.stream({model: byId("talk-model").value, messages, max_tokens: Number(byId("talk-max").value) || 256}, this.session, this.stopping.signal);
      setText(byId("talk-status"), `The answer is complete: ${answer.words().join(", ")}.`);
    } catch (error) {
      const stopped = error.name === "AbortError";
      const words = stopped ? "Stopped." : error.status ? shortened(error.message, 400) : "The answer broke off: the server does not answer.";
      answer.fail(words, stopped);
      setText(byId("talk-status"), words);
    }
    if (answer.text) messages.push({role: "assistant", content: answer.text});
    else messages.pop();
    this.stopping = null;
    this.mark(false);
  }

  mark(isBusy) {
    byId("talk-send").disabled = isBusy;
    byId("talk-stop").disabled = !isBusy;
    byId("talk").setAttribute("aria-busy", String(isBusy));
    if (isBusy) setText(byId("talk-status"), "The answer comes.");
  }
}

class Answer {
  constructor(list, model) {
    Object.assign(this, {text: "", sentMs: 0, firstMs: 0, lastMs: 0, usage: null, workers: "", id: ""});
    this.reasoning = el("p", {className: "said reasoning", hidden: true});
    this.said = el("p", {className: "said"});
    this.facts = el("p", {className: "quiet facts-line"});
    this.item = el("li", {className: "answered"}, el("h2", {}, el("bdi", {text: shortened(model, 60)})), this.reasoning, this.said, this.facts);
    list.append(this.item);
  }

  async stream(body, session, signal) {
    this.sentMs = performance.now();
    const response = await ask("v1/chat/completions", {
      method: "POST", signal, body: JSON.stringify({...body, stream: true, stream_options: {include_usage: true}}),
      headers: {"content-type": "application/json", "x-relevo-explain": "1", "x-session-affinity": session},
    });
    this.id = response.headers.get("x-request-id") ?? "";
    if (!response.ok) throw await refusal(response);
    this.workers = workersOf(response.headers.get("x-relevo-route") ?? "");
    let isDone = false;
    for await (const data of events(response)) {
      if (data === "[DONE]") isDone = true;
      else this.take(JSON.parse(data));
    }
    if (!isDone) throw new Error("the stream ended early");
  }

  take(chunk) {
    if (chunk.error) throw Object.assign(new Error(String(chunk.error.message ?? chunk.error)), {status: 500});
    if (chunk.usage) this.usage = chunk.usage;
    for (const {delta} of chunk.choices ?? []) {
      for (const [name, isReasoning] of TEXTS) {
        if (typeof delta?.[name] === "string" && delta[name]) this.add(delta[name], isReasoning);
      }
    }
    this.tell();
  }

  add(text, isReasoning) {
    this.lastMs = performance.now();
    this.firstMs ||= this.lastMs;
    const node = isReasoning ? this.reasoning : this.said;
    node.hidden = false;
    node.append(spoken(text));
    if (!isReasoning) this.text += text;
    this.item.scrollIntoView({block: "end"});
  }

  words() {
    const told = [];
    if (this.firstMs) told.push(`TTFT ${duration((this.firstMs - this.sentMs) / 1000)}`);
    const numTokens = this.usage?.completion_tokens, spentS = (this.lastMs - this.firstMs) / 1000;
    if (isKnown(numTokens)) told.push(`${count(numTokens)} tokens${numTokens > 1 && spentS > 0 ? `, ${((numTokens - 1) / spentS).toFixed(1)}/s` : ""}`);
    const numCached = this.usage?.prompt_tokens_details?.cached_tokens;
    if (isKnown(this.usage?.prompt_tokens)) told.push(`prompt ${count(this.usage.prompt_tokens)}${isKnown(numCached) ? `, ${count(numCached)} cached` : ""}`);
    if (this.workers) told.push(this.workers);
    return told;
  }

  tell() {
    this.facts.replaceChildren(this.words().join(" \u00b7 "));
    if (this.usage && this.id) this.facts.append(" \u00b7 ", el("a", {href: `#requests/${encodeURIComponent(this.id)}`, text: "why?"}));
  }

  fail(words, isPlain) {
    this.tell();
    this.item.append(el("p", {className: isPlain ? "quiet" : "error", text: words}));
  }
}

/** "prefill-0 \u2192 decode-0", or one name where one worker did both. */
function workersOf(route) {
  const named = new Map([...route.matchAll(WORKERS)].map(([, step, worker]) => [step, visible(worker)]));
  return [...new Set(["prompt", "decode"].map((step) => named.get(step)).filter(Boolean))].join(" \u2192 ");
}
