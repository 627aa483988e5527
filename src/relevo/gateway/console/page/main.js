// Joins the parts: the feed, the connection's notice, the login, and the view that the address names.

import {hasKey, useKey} from "./access.js";
import {Cache} from "./cache.js";
import {Chat} from "./chat.js";
import {Decisions} from "./decisions.js";
import {byId, setText} from "./dom.js";
import {Drain} from "./drain.js";
import {Feed} from "./feed.js";
import {Latency} from "./latency.js";
import {Login, startKeyDialog} from "./login.js";
import {ModelChoice} from "./model-choice.js";
import {Notice} from "./notice.js";
import {age} from "./numbers.js";
import {Overview} from "./overview.js";
import {Plan} from "./plan.js";
import {Queues} from "./queues.js";
import {Requests} from "./requests.js";
import {Router} from "./route.js";
import {Sessions} from "./sessions.js";
import {shortened} from "./text.js";
import {startTheme} from "./theme.js";

startTheme();
const notice = new Notice();
const views = {
  overview: new Overview(new Drain(notice)), latency: new Latency(), cache: new Cache(), queues: new Queues(),
  decisions: new Decisions(), requests: new Requests(), sessions: new Sessions(), chat: new Chat(), plan: new Plan(),
};
const models = new ModelChoice(draw);
const login = new Login(() => feed.restart({forget: true}));
const feed = new Feed(draw, onLink);
const router = new Router(Object.keys(views), (name, rest) => {
  if (name === "requests") views.requests.open(rest);
  draw();
});
startKeyDialog(() => (hasKey() || !needsKey() ? feed.restart({forget: true}) : lock("")), () => feed.state?.viewer);
router.go();
if (needsKey() && !hasKey()) lock("");
else open();

function needsKey() {
  return document.documentElement.dataset.needsKey === "yes";
}

function open() {
  login.hide();
  feed.restart();
}

/** Without a key that is good here nothing stays of what was shown. */
function lock(message) {
  const wasShown = feed.state !== null;
  feed.stop();
  feed.state = null;
  useKey("");
  if (wasShown) location.reload();  // so that nothing of the server stays in the page
  else login.show(message);
}

function onLink(link) {
  notice.show(link);
  if (link.kind === "locked") lock(link.message);
}

/** Only what is seen is drawn. */
function draw() {
  const state = feed.state;
  if (state === null) return;
  const {server, viewer} = state;
  setText(byId("about"), [`v${shortened(server.version, 20)}`, `up ${age(server.uptime_s)}`, server.is_draining ? "stopping" : "",
    viewer.tenant ? `tenant ${shortened(viewer.tenant, 24)}` : "", viewer.is_admin ? "admin" : ""].filter(Boolean).join(" \u00b7 "));
  views[router.now]?.show(state, models.of(state));
}
