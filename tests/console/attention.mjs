// A tab that is not seen asks for nothing; a worker that is slow is seen; a chart is read with the pointer.

import assert from "node:assert/strict";
import {inChromium, isLive, show} from "./browser.mjs";
import {fixtureServer} from "./fixture-server.mjs";
import {state} from "./states.mjs";

const url = process.argv[2];

const hide = (page, isHidden) => page.evaluate((hidden) => {
  Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}, isHidden);

await inChromium(async (open) => {
  const server = await fixtureServer(url, {"/v1/state/stream": state()});
  const page = await open(`${server.url}/`);
  await isLive(page);
  assert.match(await page.textContent("#verdict"), /^decode-1: its steps take 3\.1× as long as its peers' for the same work \(/);
  assert.deepEqual(await page.$$eval('.worker[data-level="slow"] h4', (heads) => heads.map((head) => head.textContent)), ["decode-1slow 3.1×"]);
  assert.equal(await page.$$eval('.worker:not([data-level=""])', (cards) => cards.length), 1);
  assert.ok((await page.$$(".flow.prompt")).length && (await page.$$(".flow.handoff")).length && (await page.$$(".flow.output")).length);

  assert.equal(server.numStreams(), 1);
  await hide(page, true);
  await page.waitForSelector('body[data-link="paused"]');
  await page.waitForFunction(() => true);
  while (server.numStreams()) await new Promise((resume) => setTimeout(resume, 20));
  await hide(page, false);
  await isLive(page);
  assert.equal(server.numStreams(), 1);

  await show(page, "latency");
  const box = await (await page.waitForSelector("#latency-charts svg.plot")).boundingBox();
  await page.mouse.move(box.x + 60, box.y + 50);
  await page.waitForFunction(() => /^\d\d:\d\d:\d\d: p50 .* p90 .* p99 /.test(document.querySelector("#latency-charts .readout").textContent));
  await page.emulateMedia({reducedMotion: "reduce"});
  await show(page, "overview");
  assert.equal(await page.$eval(".flow .tokens", (path) => getComputedStyle(path).animationName), "none");
  await page.context().close();
  await server.close();
});
