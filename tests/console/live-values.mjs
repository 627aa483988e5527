// What the console shows at rest is what /metrics says, and it follows without being loaded again.

import assert from "node:assert/strict";
import {cells, inChromium, isLive, number, show} from "./browser.mjs";

const url = process.argv[2];

async function metrics() {
  const text = await (await fetch(`${url}/metrics`, {headers: {accept: "text/plain"}})).text();
  return (name, labels = {}) => text.split("\n").filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
    .filter((line) => Object.entries(labels).every(([key, value]) => line.includes(`${key}="${value}"`)))
    .reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

async function complete(prompt) {
  const answer = await fetch(`${url}/v1/completions`, {method: "POST", headers: {"content-type": "application/json"},
    body: JSON.stringify({model: "fake", prompt, max_tokens: 20})});
  assert.equal(answer.status, 200);
}

async function compare(page, numRequests) {
  await page.waitForFunction((num) => document.querySelector("#totals tbody tr")?.cells[5].textContent === String(num), numRequests);
  const of = await metrics();
  const shown = (await cells(page, "totals")).fake;
  assert.deepEqual(shown.slice(3).map(number), [
    of("relevo:requests_in_flight"), of("vllm:num_requests_waiting", {engine: "gateway"}), of("vllm:request_success_total"),
    of("vllm:admission_rejections_total"), of("vllm:prompt_tokens_total"), of("vllm:prompt_tokens_cached_total"), of("relevo:handoffs_total"),
  ]);
  const workers = await cells(page, "workers");
  await show(page, "cache");
  await page.waitForFunction(() => document.querySelectorAll("#blocks tbody th").length > 1);
  for (const [id, row] of Object.entries(await cells(page, "blocks"))) {
    const worker = {worker: id};
    const states = ["held", "reusable", "free", "quarantined"].map((state) => of("relevo:blocks", {...worker, state}));
    assert.deepEqual(row.slice(2, 6).map(number), states, id);
    assert.equal(number(row[6]), states.reduce((sum, each) => sum + each, 0), id);
    assert.deepEqual([row[7], row[8], row[10]].map(number), [of("vllm:prefix_cache_queries_total", {engine: id}),
      of("vllm:prefix_cache_hits_total", {engine: id}), of("vllm:num_preemptions_total", {engine: id})], id);
    assert.ok(id in workers);
  }
  await show(page, "overview");
}

await inChromium(async (open) => {
  for (let at = 0; at < 6; at += 1) await complete(`once upon a time there was a reader ${at % 3} ${"and ".repeat(40)}`);
  const page = await open(`${url}/`);
  await isLive(page);
  await compare(page, 6);
  await complete("one more");
  await compare(page, 7);
});
