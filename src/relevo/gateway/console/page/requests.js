// The slowest requests and those that run; one of them looked up, with what its time went to.

import {askJson} from "./access.js";
import {byId, el} from "./dom.js";
import {clock, count, duration} from "./numbers.js";
import {drawRequestLink, Rows} from "./table.js";
import {shortened} from "./text.js";
import {drawTimeline} from "./timeline.js";

const NUM_LISTED = "10";
const LISTED_FOR_MS = 5000;

export class Requests {
  constructor() {
    const n = (show) => ({kind: "n", show});
    const link = {className: "name", draw: (cell, each) => drawRequestLink(cell, each.request_id)};
    this.slowest = new Rows(byId("slowest"), [
      {className: "name", draw: (cell, each) => drawRequestLink(cell, each.id)}, {kind: "text", show: (each) => clock(each.arrived_at_unix_s)},
      n((each) => duration(each.e2e_s)), n((each) => duration(each.ttft_s)), n((each) => duration(each.worst_gap_s)), n((each) => count(each.num_prompt_tokens)),
      n((each) => count(each.num_cached_tokens)), n((each) => count(each.num_output_tokens)), {kind: "text", className: "reason", show: (each) => each.sentence},
    ], (each) => `${each.gateway_id}\u0000${each.id}\u0000${each.arrived_at_unix_s}`, "No request that is kept has ended since then.");
    this.running = new Rows(byId("in-flight"), [link, {kind: "text", show: (each) => each.phase.replaceAll("_", " ")},
      n((each) => duration(each.e2e_s)), n((each) => duration(each.ttft_s)), n((each) => count(each.num_prompt_tokens)), n((each) => count(each.num_output_tokens)),
    ], (each) => `${each.gateway_id}\u0000${each.request_id}\u0000${each.started_at_unix_s}`, "Nothing runs.");
    this.asked = "";  // the request whose timeline is shown
    this.listed = {question: "", atMs: 0};
    byId("slowest-form").addEventListener("submit", (event) => event.preventDefault());
    byId("slowest-form").addEventListener("input", () => this.list());
    this.model = "";
    byId("request-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const address = `#requests/${encodeURIComponent(byId("request-id").value.trim())}`;
      if (location.hash === address) this.look(this.asked);
      else location.hash = address;
    });
  }

  show(state, chosen) {
    this.running.show(state.requests.in_flight.filter((each) => chosen.has(each.model)));
    this.model = chosen.one;
    this.list();
  }

  /** Asked anew for another question, else from time to time. */
  async list() {
    const question = new URLSearchParams({slowest: NUM_LISTED, by: byId("slowest-by").value});
    if (byId("slowest-since").value) question.set("since", byId("slowest-since").value);
    if (this.model) question.set("model", this.model);
    const isSame = String(question) === this.listed.question;
    if (isSame && Date.now() - this.listed.atMs < LISTED_FOR_MS) return;
    this.listed = {question: String(question), atMs: Date.now()};
    try {
      const {data} = await askJson(`v1/requests?${question}`);
      if (String(question) === this.listed.question) this.slowest.show(data);
    } catch (error) {
      if (error.status && String(question) === this.listed.question) this.slowest.showNone(shortened(error.message, 300));
    }
  }

  /** As the address names it; empty: none. */
  open(id) {
    if (id === this.asked) return;
    this.asked = id;
    byId("request-id").value = id;
    byId("told").hidden = !id;
    if (id) this.look(id);
  }

  async look(id) {
    const article = byId("told");
    try {
      const told = await askJson(`v1/requests/${encodeURIComponent(id)}`);
      if (id !== this.asked) return;
      drawTimeline(article, told);
    } catch (error) {
      if (id !== this.asked) return;
      const words = error.status ? shortened(error.message, 400) : "The server does not answer; try again.";
      article.replaceChildren(el("h2", {id: "told-title", tabindex: "-1", text: "Not found"}), el("p", {className: "error", role: "alert", text: words}));
      if (error.status === undefined) console.warn(error);
    }
    byId("told-title").focus({preventScroll: true});
  }
}
