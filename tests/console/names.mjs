// Names that try to be markup, script, another text or none: each stays a text that is seen.

import assert from "node:assert/strict";
import {inChromium, isLive, show, VIEWS} from "./browser.mjs";
import {fixtureServer} from "./fixture-server.mjs";
import {explained, large, state} from "./states.mjs";

const url = process.argv[2];
const NAMES = [
  "<img src=x onerror=\"window.hacked=1\">", "\"><script>window.hacked=1</script>", "'; window.hacked=1; '", "javascript:window.hacked=1",
  "a\u202eb\u2066c\u200fd", "tab\tnew\nline\u0000nul\u001b[31m", "</td></table><h1>x", "{{7*7}}${7*7}", "\u0600\u05d0 \u0645\u0631\u062d\u0628\u0627", "%2e%2e/%00", "x".repeat(5000),
  "__proto__", "constructor", "\ud83d\ude00\u200d\u2764", "",
];
const REORDERING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/;

/** Every text of a state that comes from people, replaced; kinds and roles stay. */
function hostile(name) {
  const found = state();
  const of = (object, ...keys) => keys.forEach((key) => { object[key] = name; });
  of(found.viewer, "tenant");
  of(found.server, "version", "failure");
  found.models.forEach((model) => of(model, "name", "topology", "reason"));
  found.workers.forEach((worker, index) => {
    worker.worker_id = `${name}${index}`;
    of(worker, "model", "why_not_ready", "limit");
  });
  found.workers[0].is_ready = false;
  found.gateways.forEach((gateway) => of(gateway, "gateway_id"));
  for (const list of ["flows", "latency", "lines", "tenants", "sessions"]) found[list].forEach((each) => of(each, "model"));
  found.history.models.forEach((each) => of(each, "model"));
  found.tenants.forEach((each) => of(each, "tenant"));
  found.sessions.forEach((each) => of(each, "session", "tenant", "home_worker_id"));
  found.budgets.forEach((each) => of(each, "name", "tenant", "key_prefix", "period"));
  found.decisions.forEach((each) => {
    of(each, "model", "kind", "reason", "worker_id", "request_id");
    each.facts = JSON.parse(`{${JSON.stringify(name)}: ${JSON.stringify(name)}}`);
  });
  [...found.requests.in_flight, ...found.requests.slowest].forEach((each) => of(each, "request_id", "model", "tenant", "phase", "cause", "sentence"));
  return found;
}

function hostileTimeline(name) {
  const told = explained();
  Object.assign(told, {id: name, model: name, cause: name, sentence: name, advice: name, state: name, outcome: name});
  told.phases.forEach((phase) => Object.assign(phase, {name, worker_id: name, facts: {[name || "x"]: name}}));
  return told;
}

await inChromium(async (open) => {
  for (const name of NAMES) {
    const server = await fixtureServer(url, {"/v1/state/stream": hostile(name), "/v1/requests": {data: [hostileTimeline(name)]}, [`/v1/requests/${name}`]: hostileTimeline(name)});
    const page = await open(`${server.url}/`, {mayFail: (text) => /404/.test(text)});
    await isLive(page);
    for (const view of VIEWS) {
      await show(page, view);
      await page.waitForTimeout(60);
      if (view === "requests" && name) {
        await page.click("#slowest a");
        await page.waitForSelector("#told:not([hidden]) h2");
      }
      const seen = await page.evaluate(() => ({
        hacked: window.hacked, texts: document.body.innerText, foreign: document.querySelectorAll("img, iframe, body script, [onerror], main h1 h1").length,
        links: [...document.querySelectorAll("a[href]")].map((link) => link.protocol), wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
      }));
      const where = `${JSON.stringify(name.slice(0, 40))} in ${view}`;
      assert.equal(seen.hacked, undefined, where);
      assert.equal(seen.foreign, 0, where);
      assert.ok(!REORDERING.test(seen.texts), `${where}: ${JSON.stringify(seen.texts.match(REORDERING))}`);
      assert.ok(seen.links.every((protocol) => protocol === "http:"), where);
      assert.ok(!seen.wide, `${where}: the page is too wide`);
      if (view === "overview" && name.includes("<img")) assert.ok(seen.texts.includes("<img src=x"), where);
    }
    await page.context().close();
    await server.close();
  }

  const many = await fixtureServer(url, {"/v1/state/stream": large(400)});
  const page = await open(`${many.url}/`);
  await page.waitForFunction(() => document.querySelectorAll("#workers tbody tr").length === 401);
  assert.ok((await page.$$(".worker")).length <= 24);
  assert.match(await page.textContent("#verdict"), /^worker-slow: its steps take .* as long as its peers'/);
  assert.match(await page.$eval('.worker[data-level="slow"]', (card) => card.textContent), /worker-slow/);
  await page.context().close();
  await many.close();
});
