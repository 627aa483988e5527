// The server's state as it comes, once a second, and what is known of the connection meanwhile. Owns the one stream, its
// silence, coming back, and the pause of a tab that is not seen. Does not know what is shown.

import {ask, refusal} from "./access.js";
import {events} from "./events.js";

const SILENCE_MS = 6000;  // of a stream that speaks every second
const ANSWER_MS = 8000;  // a gateway that starts again answers late
const WAITS_MS = [250, 500, 1000, 2000, 4000, 5000];
const MAX_DECISIONS = 500;

export class Feed {
  /** `onState(state)`, `onLink({kind, ...})`: kind is connecting, live, lost, paused or locked. */
  constructor(onState, onLink) {
    this.onState = onState;
    this.onLink = onLink;
    this.state = null;
    this.lostAtMs = 0;
    this.numFailures = 0;
    this.round = 0;
    this.stopReading = new AbortController();
    document.addEventListener("visibilitychange", () => this.restart());
    addEventListener("online", () => this.restart());
  }

  /** From the beginning, e.g. with another key; what was known goes, if it may no longer be known. */
  restart({forget = false} = {}) {
    if (forget) this.state = null;
    this.round += 1;
    this.stopReading.abort();
    this.stopReading = new AbortController();
    if (document.hidden) this.onLink({kind: "paused"});
    else this.run(this.round, this.stopReading.signal);
  }

  stop() {
    this.round += 1;
    this.stopReading.abort();
  }

  async run(round, signal) {
    if (!this.lostAtMs) this.onLink({kind: "connecting"});
    while (round === this.round) {
      try {
        await this.read(round, signal);
        throw new Error("the stream ended");
      } catch (error) {
        if (round !== this.round) return;
        if (error.status === 401 || error.status === 403) {
          this.onLink({kind: "locked", message: error.message});
          return;
        }
        this.lostAtMs ||= Date.now();
        const waitMs = WAITS_MS[Math.min(this.numFailures, WAITS_MS.length - 1)];
        this.numFailures += 1;
        this.onLink({kind: "lost", sinceMs: this.lostAtMs, message: error.status ? error.message : ""});
        await new Promise((resume) => setTimeout(resume, waitMs * (0.8 + 0.4 * Math.random())));
      }
    }
  }

  async read(round, signal) {
    const answer = new AbortController();
    const stop = () => answer.abort();
    signal.addEventListener("abort", stop);
    const late = setTimeout(stop, ANSWER_MS);
    try {
      const response = await ask("v1/state/stream", {signal: answer.signal, headers: {accept: "text/event-stream"}});
      clearTimeout(late);
      if (!response.ok) throw await refusal(response);
      let isFirst = true;
      for await (const data of events(response, SILENCE_MS)) {
        if (round !== this.round) return;
        this.take(JSON.parse(data), isFirst);
        isFirst = false;
      }
    } finally {
      clearTimeout(late);
      signal.removeEventListener("abort", stop);
      answer.abort();
    }
  }

  /** Later events leave out what has not changed, and have new decisions only. */
  take(state, isFirst) {
    const before = isFirst ? null : this.state;
    state.history ??= before?.history ?? null;
    state.decisions = joined(before?.decisions ?? [], state.decisions);
    this.state = state;
    const wasLostForS = this.lostAtMs ? (Date.now() - this.lostAtMs) / 1000 : 0;
    this.lostAtMs = 0;
    this.numFailures = 0;
    this.onLink({kind: "live", wasLostForS});
    this.onState(state);
  }
}

/** A viewer that missed some events is told all again. */
function joined(known, told) {
  const keyOf = (each) => `${each.gateway_id} ${each.number} ${each.at_unix_s}`;
  const seen = new Set(known.map(keyOf));
  return [...known, ...told.filter((each) => !seen.has(keyOf(each)))].slice(-MAX_DECISIONS);
}
