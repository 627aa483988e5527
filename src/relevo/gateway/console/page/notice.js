// Says aloud when the connection is lost and when it is back, once each; greys what is no longer true.

import {byId, setText} from "./dom.js";
import {clock, duration} from "./numbers.js";
import {shortened} from "./text.js";

const WORDS = {connecting: "connecting", live: "live", lost: "connection lost", paused: "paused", locked: "key needed"};
const BACK_SHOWN_MS = 10_000;

export class Notice {
  constructor() {
    this.kind = "";
    this.clearing = 0;
  }

  show(link) {
    setText(byId("link-word"), WORDS[link.kind]);
    document.body.dataset.link = link.kind;
    if (link.kind === "lost" && this.kind !== "lost") {
      const why = link.message ? ` It says: ${shortened(link.message, 300)}` : "";
      this.say(`Connection lost at ${clock(link.sinceMs / 1000)}.${why} What is shown is from before; trying again.`, "lost");
    } else if (link.kind === "live" && link.wasLostForS) {
      this.say(`Connected again after ${duration(link.wasLostForS)}.`, "back", BACK_SHOWN_MS);
    }
    if (link.kind !== "connecting") this.kind = link.kind;
  }

  /** In the live region; for `forMs`, or until something else is said. */
  say(words, level = "", forMs = 0) {
    const region = byId("notice");
    clearTimeout(this.clearing);
    setText(region, words);
    region.dataset.level = level;
    if (forMs) this.clearing = setTimeout(() => this.say(""), forMs);
  }
}
