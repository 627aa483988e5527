// Chromium for the scenarios, and what all of them want of a page: no error in its console, no dialog, no lost promise.

import assert from "node:assert/strict";
import {existsSync, readFileSync} from "node:fs";
import {createRequire} from "node:module";
import path from "node:path";

const tools = createRequire(path.resolve(process.env.CONSOLE_CHECK ?? "build/console-check", "package.json"));
const {chromium} = tools("playwright-core");
export const AXE = readFileSync(tools.resolve("axe-core/axe.min.js"), "utf8");
export const VIEWS = ["overview", "latency", "cache", "queues", "decisions", "requests", "sessions", "chat", "plan"];
const PROGRAMS = [process.env.CHROMIUM, "/usr/lib/chromium/chromium", "/usr/bin/chromium", "/usr/bin/google-chrome"];

/** Runs `scenario(open)`, where `open(address, options)` gives a page; a page's troubles fail it. */
export async function inChromium(scenario) {
  const executablePath = PROGRAMS.find((each) => each && existsSync(each));
  const browser = await chromium.launch({executablePath, args: ["--no-sandbox"]});
  const troubles = [];
  const open = async (address, {mayFail = () => false, ...options} = {}) => {
    const context = await browser.newContext({viewport: {width: 1440, height: 900}, ...options});
    const page = await context.newPage();
    page.setDefaultTimeout(20_000);
    page.on("console", (message) => {
      if (message.type() === "error" && !mayFail(message.text())) troubles.push(message.text());
    });
    page.on("pageerror", (error) => troubles.push(String(error)));
    page.on("dialog", (dialog) => {
      troubles.push(`dialog: ${dialog.message()}`);
      dialog.dismiss();
    });
    await page.goto(address);
    return page;
  };
  try {
    await scenario(open);
    assert.deepEqual(troubles, []);
  } finally {
    await browser.close();
  }
}

export const isLive = (page) => page.waitForSelector('body[data-link="live"]');

export async function show(page, view) {
  await page.evaluate((name) => {
    location.hash = `#${name}`;
  }, view);
  await page.waitForSelector(`#view-${view}:not([hidden])`);
}

/** Cells of a table's body as texts, by the text of the row's header. */
export function cells(page, table) {
  return page.$$eval(`#${table} tbody tr`, (rows) => Object.fromEntries(rows.map((row) => [row.cells[0].textContent,
    [...row.cells].map((cell) => cell.textContent)])));
}

/** A number as the page writes it, without the thin spaces. */
export const number = (text) => Number(text.replaceAll("\u202f", ""));
