// Sessions as the router knows them: where their KV is, and how much of the last prompt was found.

import {byId} from "./dom.js";
import {age, count} from "./numbers.js";
import {Rows, share} from "./table.js";

export class Sessions {
  constructor() {
    const n = (show) => ({kind: "n", show});
    this.nowS = 0;
    this.rows = new Rows(byId("session-list"), [
      {kind: "name", show: (each) => each.session}, {kind: "name", show: (each) => each.model}, {kind: "name", show: (each) => each.tenant},
      {kind: "name", show: (each) => each.home_worker_id}, n((each) => count(each.num_requests)), n((each) => count(each.num_prompt_tokens)),
      n((each) => share(each.num_cached_tokens, each.num_prompt_tokens)), n((each) => `${age(this.nowS - each.last_seen_unix_s)} ago`),
    ], (each) => `${each.model}\u0000${each.session}`, "No session was seen yet.");
  }

  show(state, chosen) {
    this.nowS = state.at_unix_s;
    this.rows.show(state.sessions.filter((each) => chosen.has(each.model)));
  }
}
