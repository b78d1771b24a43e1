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
  await page.waitForSelector("#model option", { state: "attached" });
  await page.click("#toggle-settings");
  for (const [id, value] of [["temperature", "0"], ["max_tokens", "200"]]) {
    await page.fill(`#${id}`, value);
    await page.press(`#${id}`, "Tab");
  }
  await page.click("#toggle-settings");
  return page;
}

async function ask(page, text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
  await page.waitForFunction(() => document.getElementById("stop").hidden, undefined, { timeout: 300_000 });
}

const day = await open({ viewport: { width: 900, height: 860 }, colorScheme: "light" });
await ask(day, "What is the capital of France?");
await ask(day, "Write a Python function that reverses a string.");
await day.screenshot({ path: `${folder}/page.png` });

const night = await open({ viewport: { width: 900, height: 640 }, colorScheme: "dark" });
await ask(night, "What is the capital of France?");
await night.click("#toggle-settings");
await night.screenshot({ path: `${folder}/page-dark.png` });

const phone = await open({ viewport: { width: 390, height: 700 }, colorScheme: "light" });
await ask(phone, "What is the capital of France?");
await phone.screenshot({ path: `${folder}/page-narrow.png` });
await browser.close();
