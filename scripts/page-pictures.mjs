// Takes the pictures of the chat page that the docs show. Start `flambeau serve MODEL`, and run: node scripts/page-pictures.mjs [URL] [FOLDER]
// Needs what scripts/install-clients.sh installs, and a Chromium (CHROMIUM names another one than /usr/bin/chromium).
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";

const [url = "http://127.0.0.1:8080/", folder = "docs/images"] = process.argv.slice(2);
const require = createRequire(new URL("../target/clients/node/", import.meta.url));
const { chromium } = require("playwright-core");
mkdirSync(folder, { recursive: true });
const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });

async function open(options) {
  const page = await (await browser.newContext(options)).newPage();
  await page.goto(url);
  await page.waitForSelector("#model");
  await page.click("#toggle-panel");
  for (const [id, value] of [["temperature", "0"], ["max_tokens", "300"]]) {
    await page.fill(`#${id}`, value);
    await page.press(`#${id}`, "Tab");
  }
  await page.click(".panel-head .icon-button");
  return page;
}

async function ask(page, text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
  await page.waitForSelector("#log .assistant:last-child footer .actions", { timeout: 300_000 });
  // Colours of code come a moment later.
  await page.waitForTimeout(500);
}

const CAPITAL = "What is the capital of France?";

const day = await open({ viewport: { width: 1200, height: 800 }, colorScheme: "light" });
for (const texts of [["Name three kinds of clouds."], ["What is a fjord?"], [CAPITAL, "Write a Python function that reverses a string."]]) {
  await day.getByRole("button", { name: "New chat", exact: true }).click();
  for (const text of texts) await ask(day, text);
}
await day.mouse.move(700, 560);
await day.screenshot({ path: `${folder}/page.png` });

const night = await open({ viewport: { width: 1280, height: 760 }, colorScheme: "dark" });
await ask(night, CAPITAL);
await night.click("#toggle-panel");
await night.screenshot({ path: `${folder}/page-dark.png` });

const phone = await open({ viewport: { width: 390, height: 720 }, colorScheme: "light", hasTouch: true });
await phone.screenshot({ path: `${folder}/page-narrow.png` });
await browser.close();
