// The gateway is killed: the console says so at once, keeps what it showed, greys it, and says when it is back.

import assert from "node:assert/strict";
import {inChromium, isLive} from "./browser.mjs";

const [url, pid] = [process.argv[2], Number(process.argv[3])];
const ofTheNetwork = (text) => /net::ERR_/.test(text);  // the browser's own words, which a page cannot keep back

await inChromium(async (open) => {
  const page = await open(`${url}/`, {mayFail: ofTheNetwork});
  await isLive(page);
  await page.waitForSelector(".worker");
  const workers = await page.$$eval(".worker h4 bdi", (names) => names.map((name) => name.textContent));
  assert.equal(await page.getAttribute("#notice", "aria-live"), "polite");
  process.kill(pid, "SIGKILL");
  const killedMs = Date.now();
  await page.waitForSelector('body[data-link="lost"]');
  const tookMs = Date.now() - killedMs;
  assert.match(await page.textContent("#notice"), /^Connection lost at .*What is shown is from before; trying again\.$/);
  assert.deepEqual(await page.$$eval(".worker h4 bdi", (names) => names.map((name) => name.textContent)), workers);
  assert.equal(await page.$eval("#view-overview", (view) => getComputedStyle(view).filter), "grayscale(1)");
  await isLive(page);
  await page.waitForFunction(() => /^Connected again after .*\.$/.test(document.getElementById("notice").textContent));
  assert.equal(await page.$eval("#view-overview", (view) => getComputedStyle(view).filter), "none");
  await page.waitForFunction(() => /not ready/.test(document.getElementById("totals").textContent) === false);
  console.log(`said so ${tookMs} ms after the kill, live again after ${Date.now() - killedMs} ms`);
});
