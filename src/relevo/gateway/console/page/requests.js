// The slowest requests and those that run; one of them looked up, with what its time went to.

import {askJson} from "./access.js";
import {byId, el} from "./dom.js";
import {count, duration} from "./numbers.js";
import {drawRequestLink, Rows} from "./table.js";
import {shortened} from "./text.js";
import {drawTimeline} from "./timeline.js";

export class Requests {
  constructor() {
    const n = (show) => ({kind: "n", show});
    const link = {className: "name", draw: (cell, each) => drawRequestLink(cell, each.request_id)};
    const tail = [n((each) => count(each.num_prompt_tokens)), n((each) => count(each.num_output_tokens))];
    const keyOf = (each) => `${each.gateway_id}\u0000${each.request_id}\u0000${each.started_at_unix_s}`;
    this.slowest = new Rows(byId("slowest"), [link, n((each) => duration(each.e2e_s)), n((each) => duration(each.ttft_s)), ...tail,
      {kind: "text", className: "reason", show: (each) => each.sentence || each.cause.replaceAll("_", " ")}], keyOf, "No request has ended in the last ten minutes.");
    this.running = new Rows(byId("in-flight"), [link, {kind: "text", show: (each) => each.phase.replaceAll("_", " ")},
      n((each) => duration(each.e2e_s)), n((each) => duration(each.ttft_s)), ...tail], keyOf, "Nothing runs.");
    this.asked = "";
    byId("request-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const address = `#requests/${encodeURIComponent(byId("request-id").value.trim())}`;
      if (location.hash === address) this.look(this.asked);
      else location.hash = address;
    });
  }

  show(state, chosen) {
    this.slowest.show(state.requests.slowest.filter((each) => chosen.has(each.model)));
    this.running.show(state.requests.in_flight.filter((each) => chosen.has(each.model)));
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
