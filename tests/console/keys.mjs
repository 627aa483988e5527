// With keys: a login with nothing of the server in it; an ordinary key reads, an admin's drains, after a question.

import assert from "node:assert/strict";
import {inChromium, isLive} from "./browser.mjs";

const [url, key, adminKey] = process.argv.slice(2);
const refused = (text) => /401/.test(text);

async function logIn(page, given) {
  await page.waitForSelector("#login:not([hidden])");
  await page.fill("#login-key", given);
  await page.keyboard.press("Enter");
}

await inChromium(async (open) => {
  const page = await open(`${url}/`);  // no error in the console before a wrong key was given
  await page.waitForSelector("#login:not([hidden])");
  assert.ok(!/fake|prefill-0|decode-0/.test(await page.content()));
  assert.equal(await page.evaluate(() => document.activeElement.id), "login-key");
  await logIn(page, key);
  await isLive(page);
  await page.waitForSelector("#workers tbody th:has-text('decode-0')");
  assert.equal((await page.$$("#workers .admin button")).length, 0);
  const kept = await page.evaluate(() => [{...sessionStorage}, {...localStorage}, document.cookie, location.href]);
  assert.deepEqual(Object.values(kept[0]), [key]);
  assert.ok(!JSON.stringify(kept.slice(1)).includes(key));
  await page.reload();
  await isLive(page);

  const other = await open(`${url}/`, {mayFail: refused});
  await logIn(other, "sk-wrong");
  await other.waitForFunction(() => document.getElementById("login-error").textContent.length > 0);
  assert.ok(await other.isHidden("#console"));
  await logIn(other, adminKey);
  await isLive(other);
  const button = await other.waitForSelector("#workers tbody tr:has-text('prefill-0') .admin button");
  const posts = [];
  other.on("request", (request) => request.method() === "POST" && posts.push(new URL(request.url()).pathname));
  await button.click();
  await other.waitForSelector("#drain-dialog[open]");
  assert.match(await other.textContent("#drain-dialog"), /Drain prefill-0\?/);
  assert.equal(await other.evaluate(() => document.activeElement.value), "cancel");
  await other.keyboard.press("Enter");
  await other.waitForSelector("#drain-dialog:not([open])", {state: "attached"});
  assert.deepEqual(posts, []);
  await button.click();
  await other.click("#drain-dialog button[value=drain]");
  await other.waitForFunction(() => /prefill-0 was asked to drain/.test(document.getElementById("notice").textContent));
  assert.deepEqual(posts, ["/admin/drain/prefill-0"]);
});
