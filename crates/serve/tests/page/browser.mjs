// A browser with the page, and words to use the page by.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";

export const [url, packages, executablePath, recording, screenshots] = process.argv.slice(2);
const require = createRequire(`${packages}/`);
const { chromium } = require("playwright-core");
const args = ["--no-sandbox", "--disable-gpu", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"];
export const browser = await chromium.launch({ executablePath, args: [...args, `--use-file-for-fake-audio-capture=${recording}`] });
/** Requests to other hosts, and errors of the page. */
export const foreign = [], faults = [];

/** A page in a context of its own. Lines of the console that match `expects` are no faults. */
export async function open({ at = url, expects, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, reducedMotion: "reduce", ...options });
  await context.grantPermissions(["clipboard-read", "clipboard-write", "microphone"], { origin: new URL(at).origin });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on("request", (request) => /^(data|blob):/.test(request.url()) || request.url().startsWith(at) || foreign.push(request.url()));
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("console", (line) => line.type() === "error" && !expects?.test(line.text()) && faults.push(line.text()));
  await page.addInitScript(() => addEventListener("securitypolicyviolation", (event) => (window.violations ??= []).push(event.violatedDirective)));
  await page.goto(at);
  await page.waitForSelector("#model");
  return page;
}

export async function choose(page, model) {
  await page.click("#model");
  await page.locator("[role=option]", { has: page.getByText(model, { exact: true }) }).click();
}

export async function write(page, text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
}

/** Waits for the end of an answer; the words that screen readers get. */
export async function ended(page) {
  await page.waitForSelector("#stop", { state: "detached" });
  await page.waitForFunction(() => document.querySelector("#log .assistant:last-child footer .actions"));
  return page.textContent("#status");
}

export async function ask(page, text) {
  await write(page, text);
  return ended(page);
}

export const bubbles = (page) => page.locator("#log .bubble").allTextContents();
export const answers = async (page) => (await page.locator("#log .assistant .markdown").allTextContents()).map((text) => text.trim());
export const last = (page) => page.locator("#log .assistant").last();

/** Sets a field of the settings. */
export async function set(page, fields) {
  await page.click("#toggle-panel");
  for (const [id, value] of Object.entries(fields)) {
    await page.fill(`#${id}`, value);
    await page.press(`#${id}`, "Tab");
  }
  await page.click("#toggle-panel");
}

/** The body of the next request for an answer. */
export async function bodyOf(page, act) {
  const asked = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
  await act();
  return (await asked).postDataJSON();
}

/** Fails on serious breaches of the rules for accessible pages. */
export async function checkAccess(page) {
  // The page's policy admits no other scripts; this one runs in a world of its own.
  await page.evaluate(readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
  const { violations } = await page.evaluate(() => window.axe.run(document));
  const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  assert.deepEqual(serious.map(({ id, nodes }) => [id, nodes.map((node) => node.html)]), []);
}

/** A way to the server that can be cut. */
export async function cuttable() {
  const { hostname, port } = new URL(url);
  const sockets = new Set();
  const relay = createServer((near) => {
    const far = connect(Number(port), hostname);
    for (const [from, to] of [[near, far], [far, near]]) {
      sockets.add(from);
      from.pipe(to);
      from.on("error", () => to.destroy());
      from.on("close", () => to.destroy());
    }
  });
  const open = (at) => new Promise((done) => relay.listen(at, "127.0.0.1", done));
  await open(0);
  const { port: own } = relay.address();
  const cut = () => {
    for (const socket of sockets) socket.resetAndDestroy();
    sockets.clear();
  };
  return { at: `http://127.0.0.1:${own}/`, cut, open: () => open(own), close: () => (relay.close(), cut()) };
}
