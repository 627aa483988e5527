// axe-core finds nothing serious or critical: every view, light and dark, wide and narrow, with much in it and with little.

import assert from "node:assert/strict";
import {AXE, inChromium, isLive, show, VIEWS} from "./browser.mjs";
import {fixtureServer} from "./fixture-server.mjs";
import {explained, slowest, state} from "./states.mjs";

const url = process.argv[2];

async function look(page, where) {
  const found = await page.evaluate(async () => (await window.axe.run(document, {resultTypes: ["violations"]})).violations
    .filter(({impact}) => impact === "serious" || impact === "critical")
    .map(({id, nodes}) => `${id}: ${nodes.slice(0, 4).map((node) => `${node.target} ${node.any[0]?.message ?? ""}`).join(" | ")}`));
  assert.deepEqual(found, [], where);
}

await inChromium(async (open) => {
  const full = await fixtureServer(url, {"/v1/state/stream": state(), "/v1/requests": slowest(), "/v1/requests/req-7": explained()});
  for (const colorScheme of ["light", "dark"]) {
    for (const [address, width] of [[full.url, 1440], [full.url, 390], [url, 1440]]) {
      const page = await open(`${address}/`, {colorScheme, bypassCSP: true, reducedMotion: "reduce", viewport: {width, height: 900}});
      await isLive(page);
      await page.evaluate(AXE);
      for (const view of VIEWS) {
        await show(page, view);
        if (view === "requests" && address === full.url) {
          await page.click("#slowest a");
          await page.waitForSelector("#told .phases");
        }
        await look(page, `${view}, ${colorScheme}, ${width}, ${address}`);
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.ok(overflow <= 0, `${view} is ${overflow} px wider than ${width}`);
      }
      await page.click("#key-button");
      await look(page, `the key dialog, ${colorScheme}`);
      await page.keyboard.press("Escape");
      if (address === full.url) {
        await show(page, "overview");
        await page.click("#workers .admin button");
        await look(page, `the drain dialog, ${colorScheme}`);
        await page.keyboard.press("Escape");
      }
      await page.evaluate(() => document.getElementById("login").hidden = false);
      await page.evaluate(() => document.getElementById("console").hidden = true);
      await look(page, `the login, ${colorScheme}`);
      await page.context().close();
    }
  }
  await full.close();
});
