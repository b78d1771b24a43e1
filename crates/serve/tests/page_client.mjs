// Uses the page in a real Chromium. Usage: page_client.mjs URL PACKAGES CHROMIUM [SCREENSHOTS]; prints what worked as JSON.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [url, packages, executablePath, screenshots] = process.argv.slice(2);
const require = createRequire(`${packages}/`);
const { chromium } = require("playwright-core");
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const foreign = [], faults = [];

async function open(options = {}) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on("request", (request) => request.url().startsWith(url) || foreign.push(request.url()));
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("console", (line) => line.type() === "error" && faults.push(line.text()));
  await page.goto(url);
  await page.waitForSelector("#model option", { state: "attached" });
  return page;
}

const isDone = (page) => page.waitForFunction(() => document.getElementById("stop").hidden);

async function say(page, text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
}

const texts = (page, role) => page.locator(`#log article.${role} > :is(p, div)`).allTextContents();

const page = await open();

async function conversation() {
  assert.deepEqual(await page.locator("#model option").allTextContents(), ["tiny", "caller", "former", "endless"], "models that chat");
  await page.click("#toggle-settings");
  await page.fill("#max_tokens", "12");
  await page.press("#max_tokens", "Tab");
  await page.click("#toggle-settings");
  await say(page, "where is the cat ?");
  await isDone(page);
  await say(page, "the dog");
  await isDone(page);
  assert.deepEqual(await texts(page, "user"), ["where is the cat ?", "the dog"]);
  assert.equal((await texts(page, "assistant")).length, 2);
  assert.match(await page.locator("#log article.assistant footer span").last().textContent(), /tokens\/s · first token after/);
  // History is this browser's: it is there again after a reload.
  await page.reload();
  await page.waitForSelector("#log article.assistant");
  assert.deepEqual(await texts(page, "user"), ["where is the cat ?", "the dog"]);
}

async function edit() {
  await page.locator("#log article.user").first().getByRole("button", { name: "Edit" }).click();
  assert.equal(await page.inputValue("#prompt"), "where is the cat ?");
  await page.fill("#prompt", "a mat");
  await page.click("#send");
  await isDone(page);
  assert.deepEqual(await texts(page, "user"), ["a mat"]);
  // The other branch stays.
  const chats = await page.locator("#chats option").allTextContents();
  assert.equal(chats.length, 2);
  await page.selectOption("#chats", "1");
  assert.deepEqual(await texts(page, "user"), ["where is the cat ?", "the dog"]);
}

async function stop() {
  await page.click("#new");
  await page.selectOption("#model", "endless");
  await page.click("#toggle-settings");
  await page.fill("#max_tokens", "");
  await page.press("#max_tokens", "Tab");
  await page.click("#toggle-settings");
  await say(page, "go");
  await page.waitForFunction(() => document.querySelector("#log article.assistant")?.textContent.includes("on"));
  await page.click("#stop");
  await page.waitForFunction(() => document.getElementById("status").textContent === "Stopped.");
  const [before] = await texts(page, "assistant");
  await page.waitForTimeout(300);
  assert.deepEqual(await texts(page, "assistant"), [before], "nothing comes after it was stopped");
  await page.selectOption("#model", "tiny");
}

async function keyboard() {
  await page.reload();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  await page.keyboard.press("Enter");
  await page.keyboard.type("the cat");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("sat");
  assert.equal(await page.inputValue("#prompt"), "the cat\nsat");
}

const colour = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).map(Number));
const isDark = ([r, g, b]) => r + g + b < 200;

async function dark() {
  const night = await open({ colorScheme: "dark" });
  assert(isDark(await colour(night)), "dark as the system");
  await night.click("#toggle-settings");
  await night.selectOption("#scheme", "light");
  assert(!isDark(await colour(night)), "light by choice");
  await night.selectOption("#scheme", "dark");
  await night.click("#toggle-settings");
  await say(night, "where is the cat ?");
  await isDone(night);
  if (screenshots) await night.screenshot({ path: `${screenshots}/page-dark.png` });
  await accessible(night);
  await night.context().close();
}

async function narrow() {
  const phone = await open({ viewport: { width: 320, height: 640 } });
  await say(phone, "where is the cat ? ".repeat(10));
  await isDone(phone);
  const [width, inner] = await phone.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert(width <= inner, `the page is ${width} wide on a screen of ${inner}`);
  for (const id of ["prompt", "send", "model"]) assert(await phone.isVisible(`#${id}`), id);
  await accessible(phone);
  await phone.context().close();
}

async function accessible(page) {
  // The page's policy admits no other scripts; this one runs in a world of its own.
  await page.evaluate(readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
  const { violations } = await page.evaluate(() => window.axe.run(document));
  const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  assert.deepEqual(serious.map(({ id, nodes }) => [id, nodes.map((node) => node.html)]), []);
}

async function axe() {
  await page.click("#toggle-settings");
  await accessible(page);
  await page.click("#toggle-settings");
  if (screenshots) await page.screenshot({ path: `${screenshots}/page.png` });
}

async function alone() {
  assert.deepEqual(foreign, [], "no request to another host");
  assert.deepEqual(faults, [], "no error in the page");
}

const worked = [];
for (const step of [conversation, edit, stop, keyboard, dark, narrow, axe, alone]) {
  await step();
  worked.push(step.name);
}
await browser.close();
console.log(JSON.stringify(worked));
