// Every view by keyboard alone, and what can be done in it.

import assert from "node:assert/strict";
import {inChromium, isLive, VIEWS} from "./browser.mjs";

const url = process.argv[2];
const focused = (page) => page.evaluate(() => document.activeElement.id || document.activeElement.textContent.trim().slice(0, 40));

async function tabTo(page, wanted, key = "Tab") {
  for (let pressed = 0; pressed < 90; pressed += 1) {
    if (await page.evaluate(wanted)) return;
    await page.keyboard.press(key);
  }
  assert.fail(`not reached by ${key}: ${wanted}; the focus is at ${await focused(page)}`);
}

const at = (id) => `document.activeElement.id === ${JSON.stringify(id)}`;
const atLink = (view) => `document.activeElement.hash === "#${view}" && document.activeElement.closest("nav") !== null`;

await inChromium(async (open) => {
  const page = await open(`${url}/`);
  await isLive(page);
  await page.keyboard.press("Tab");
  assert.equal(await focused(page), "skip");
  await page.keyboard.press("Enter");
  assert.equal(await focused(page), "main");

  for (const view of VIEWS) {
    await page.evaluate(() => document.activeElement.blur());
    await tabTo(page, atLink(view));
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    assert.notEqual(outline, "none", `the focus on ${view} is seen`);
    await page.keyboard.press("Enter");
    await page.waitForSelector(`#view-${view}:not([hidden])`);
    if (view !== "overview") assert.equal(await focused(page), `h-${view}`);
    assert.equal(await page.$eval('nav a[aria-current="page"]', (link) => link.hash), `#${view}`);
    assert.equal(await page.$$eval("main > section:not([hidden])", (shown) => shown.length), 1);
  }

  await tabTo(page, atLink("latency"), "Shift+Tab");
  await page.keyboard.press("Enter");
  await tabTo(page, 'document.activeElement.matches("svg.plot")');
  await page.keyboard.press("ArrowLeft");
  await page.waitForFunction(() => /^\d\d:\d\d:\d\d:/.test(document.querySelector("#latency-charts .readout").textContent));
  await tabTo(page, 'document.activeElement.matches("#latency-charts summary")');
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#latency-charts details table").tBodies[0].rows.length > 10);

  await tabTo(page, atLink("chat"), "Shift+Tab");
  await page.keyboard.press("Enter");
  await tabTo(page, at("talk-text"));
  await page.keyboard.type("Say something <b>bold</b>");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /^The answer is complete: TTFT .* tokens.*prompt \d+, \d+ cached/.test(document.getElementById("talk-status").textContent));
  assert.equal(await page.textContent(".asked .said"), "Say something <b>bold</b>");
  assert.match(await page.textContent(".answered .facts-line"), /decode-0/);
  await tabTo(page, 'document.activeElement.textContent === "why?"', "Shift+Tab");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#view-requests:not([hidden]) #told:not([hidden])");
  await page.waitForFunction(() => document.querySelectorAll("#told .phases tbody tr").length > 2);

  await tabTo(page, at("request-id"), "Shift+Tab");
  await page.keyboard.press("Control+A");
  await page.keyboard.type("no-such-request");

  await tabTo(page, atLink("decisions"), "Shift+Tab");
  await page.keyboard.press("Enter");
  await tabTo(page, at("decision-text"));
  await page.keyboard.type("decode-0");
  await page.waitForFunction(() => [...document.querySelectorAll("#decision-list tbody tr")].every((row) => row.textContent.includes("decode-0")));
  await tabTo(page, at("decision-hold"));
  await page.keyboard.press("Space");
  assert.equal(await page.getAttribute("#decision-hold", "aria-pressed"), "true");

  await tabTo(page, at("theme"), "Shift+Tab");
  await page.keyboard.press("End");
  await page.waitForFunction(() => document.documentElement.dataset.theme === "dark");
  await tabTo(page, at("key-button"));
  await page.keyboard.press("Enter");
  await page.waitForSelector("#key-dialog[open]");
  assert.equal(await focused(page), "key-field");
  await page.keyboard.press("Escape");
  await page.waitForSelector("#key-dialog:not([open])", {state: "attached"});
  assert.equal(await focused(page), "key-button");
});
