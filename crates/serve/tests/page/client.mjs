// Uses the page in a real Chromium. Usage: client.mjs URL PACKAGES CHROMIUM RECORDING [SCREENSHOTS]; prints the steps that worked as JSON.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { answers, ask, bodyOf, browser, bubbles, checkAccess, choose, cuttable, ended, faults, foreign, last, open, recording, screenshots, set, write } from "./browser.mjs";
import { hostile, rich } from "./markdown.mjs";

const page = await open();

async function models() {
  assert.equal(await page.textContent(".picker-name"), "tiny");
  await page.click("#model");
  const names = await page.locator("[role=option] .model-name").allTextContents();
  assert.deepEqual(names, ["tiny", "rich", "hostile", "thinker", "endless"], "models that chat");
  assert.match(await page.locator("[role=option]").first().textContent(), /ready( · [\d.]+ [MG]B)? · 512 tokens/);
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  assert.equal(await page.textContent(".picker-name"), "rich");
  await choose(page, "tiny");
}

async function conversation() {
  assert.equal(await page.locator(".example").count(), 4);
  await set(page, { max_tokens: "12" });
  await ask(page, "where is the cat ?");
  await ask(page, "the dog");
  assert.deepEqual(await bubbles(page), ["where is the cat ?", "the dog"]);
  assert.equal((await answers(page)).length, 2);
  assert.match(await last(page).locator(".figures").textContent(), /tokens?( · [\d.]+ tokens\/s)? · first after [\d.]+ s/);
  // Chats are this browser's: they are there again after a reload.
  await page.reload();
  await page.waitForSelector("#log .assistant");
  assert.deepEqual(await bubbles(page), ["where is the cat ?", "the dog"]);
  assert.equal(await page.inputValue("#prompt"), "");
}

async function thoughts() {
  await page.getByRole("button", { name: "New chat", exact: true }).click();
  await choose(page, "thinker");
  await ask(page, "why ?");
  const details = last(page).locator("details.thoughts");
  assert.equal(await details.evaluate((element) => element.open), false, "thoughts are folded");
  assert.match(await details.locator("summary").textContent(), /^Thought for [\d.]+ s$/);
  await details.locator("summary").click();
  assert.equal((await details.locator(".thoughts-text").textContent()).trim(), "first second");
  assert.deepEqual(await answers(page), ["The answer."]);
}

async function branches() {
  await page.locator("#log .bubble").hover();
  await page.getByRole("button", { name: "Edit message" }).click();
  await page.fill(".editor textarea", "how ?");
  await page.press(".editor textarea", "Enter");
  await ended(page);
  assert.deepEqual(await bubbles(page), ["how ?"]);
  const versions = page.getByRole("group", { name: "Versions of this message" });
  assert.match(await versions.textContent(), /2 \/ 2/);
  await page.getByRole("button", { name: "Answer again" }).click();
  await ended(page);
  assert.equal(await versions.count(), 2);
  await versions.first().getByRole("button", { name: "Previous version" }).click();
  assert.deepEqual(await bubbles(page), ["why ?"], "the first branch stays");
  await versions.first().getByRole("button", { name: "Next version" }).click();
  assert.match(await versions.last().textContent(), /2 \/ 2/, "the branch opens where it was left");
  await page.getByRole("button", { name: "Edit answer" }).click();
  await page.fill(".editor textarea", "Another **answer**.");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  assert.deepEqual(await answers(page), ["Another answer."]);
  assert.match(await versions.last().textContent(), /3 \/ 3/);
  for (const left of [2, 1]) {
    await page.getByRole("button", { name: "Delete message" }).click();
    assert.equal(await versions.count(), left);
  }
  await page.getByRole("button", { name: "Continue in a new chat" }).click();
  assert.equal(await page.textContent(".chat-title"), "why ? (copy)");
  assert.deepEqual(await bubbles(page), ["how ?"]);
  assert.equal(await versions.count(), 0);
}

async function stopped() {
  await page.getByRole("button", { name: "New chat", exact: true }).click();
  await choose(page, "endless");
  await set(page, { max_tokens: "" });
  await write(page, "go");
  await page.waitForFunction(() => document.querySelector("#log .assistant")?.textContent.includes("on and"));
  await page.click("#stop");
  assert.equal(await ended(page), "Stopped.");
  const before = await answers(page);
  await page.waitForTimeout(300);
  assert.deepEqual(await answers(page), before, "nothing comes after the stop");
  assert.match(await last(page).locator(".ending").textContent(), /^Stopped\./);
  await write(page, "again");
  await page.waitForSelector("#stop");
  await page.keyboard.press("Escape");
  assert.equal(await ended(page), "Stopped.");
}

async function cut() {
  await page.getByRole("button", { name: "New chat", exact: true }).click();
  await set(page, { max_tokens: "7" });
  assert.equal(await ask(page, "go"), "The answer was cut at the limit on tokens.");
  assert.match(await last(page).locator(".ending").textContent(), /incomplete/);
  const [before] = await answers(page);
  await page.getByRole("button", { name: "Continue", exact: true }).click();
  assert.equal(await ended(page), "The answer was cut at the limit on tokens.");
  const [after] = await answers(page);
  assert(after.startsWith(before) && after.length > before.length, `${before} → ${after}`);
  await choose(page, "rich");
  assert.equal(await ask(page, "go"), "The answer was cut at the limit on tokens.");
  await set(page, { max_tokens: "" });
  assert.equal(await ask(page, "go"), "The answer is complete.");
  assert.equal(await last(page).locator(".ending").count(), 0);
}

async function lost() {
  // A page that is closed loses its answer, but not the part that came.
  await page.getByRole("button", { name: "New chat", exact: true }).click();
  await choose(page, "endless");
  await write(page, "go");
  await page.waitForFunction(() => document.querySelector("#log .assistant")?.textContent.includes("on and"));
  await page.waitForTimeout(2500);
  await page.reload();
  await page.waitForSelector("#log .ending.broken");
  assert.match((await answers(page))[0], /^on and/);
  const way = await cuttable();
  const far = await open({ at: way.at, expects: /net::ERR/ });
  await choose(far, "endless");
  await write(far, "go");
  await far.waitForFunction(() => document.querySelector("#log .assistant")?.textContent.includes("on and"));
  way.cut();
  assert.equal(await ended(far), "The connection was lost. The answer is incomplete.");
  assert.match(await last(far).locator(".ending").textContent(), /connection to the server was lost/);
  assert.match((await answers(far))[0], /^on and/, "the part that came stays");
  // It is told from a complete answer after a reload, too.
  await far.reload();
  await far.waitForSelector("#log .ending.broken");
  way.close();
  await write(far, "again");
  await far.waitForFunction(() => document.querySelectorAll("#log .ending.broken").length === 2);
  assert.match(await far.textContent(".trouble"), /cannot be reached/);
  // The page notices when the server is back.
  await way.open();
  await far.waitForSelector(".trouble", { state: "detached" });
  await far.getByRole("button", { name: "Try again" }).last().click();
  await far.waitForFunction(() => document.querySelector("#log .assistant:last-child")?.textContent.includes("on and"));
  await far.click("#stop");
  assert.equal(await ended(far), "Stopped.");
  way.close();
  await far.context().close();
}

async function list() {
  const entries = page.locator("#sidebar .entry-title");
  const count = await entries.count();
  assert(count >= 5, `${count} chats`);
  await page.locator(".entry.current").hover();
  await page.locator(".entry.current .icon-button").click();
  await page.getByRole("button", { name: "Rename" }).click();
  await page.waitForSelector(".rename:focus");
  await page.keyboard.type("Endless words");
  await page.keyboard.press("Enter");
  assert.equal(await page.textContent(".chat-title"), "Endless words");
  await page.fill("#search", "endless W");
  assert.deepEqual(await entries.allTextContents(), ["Endless words"]);
  await page.fill("#search", "where is the cat");
  assert.deepEqual(await entries.allTextContents(), ["where is the cat ?"]);
  assert.match(await page.locator(".entry-excerpt").textContent(), /where is the cat/);
  await page.fill("#search", "no such words");
  assert.equal(await page.textContent(".entries"), "No chat contains this.");
  await page.fill("#search", "");
  await page.locator(".entry.current .icon-button").click();
  await page.locator(".entry-menu .danger").click();
  assert.equal(await entries.count(), count - 1);
  await page.getByRole("button", { name: "Undo" }).click();
  assert.equal(await entries.count(), count);
  assert.equal(await page.textContent(".chat-title"), "Endless words");
  await page.locator(".entry.current .icon-button").click();
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Save as JSON" }).click()]);
  const saved = JSON.parse(readFileSync(await file.path(), "utf8"));
  assert.deepEqual(saved.messages.map(({ role }) => role), ["user", "assistant"]);
}

async function settings() {
  await page.getByRole("button", { name: "New chat", exact: true }).click();
  await choose(page, "thinker");
  await set(page, { system: "Be brief.", temperature: "0.5", top_p: "0.9", seed: "7" });
  const body = await bodyOf(page, () => write(page, "the cat"));
  await ended(page);
  assert.deepEqual([body.temperature, body.top_p, body.seed, body.top_k, body.model], [0.5, 0.9, 7, undefined, "thinker"]);
  assert.deepEqual(body.messages, [{ role: "system", content: "Be brief." }, { role: "user", content: "the cat" }]);
  await page.click("#toggle-panel");
  await page.getByRole("button", { name: "Reset Temperature" }).click();
  assert.equal(await page.inputValue("#temperature"), "");
  await page.fill("#schema", "{");
  assert.notEqual(await page.textContent("#schema-error"), "");
  await page.fill("#schema", "");
  await page.click("#toggle-panel");
  await set(page, { system: "", top_p: "", seed: "" });
}

async function files() {
  await page.getByRole("button", { name: "New chat", exact: true }).click();
  await page.evaluate(() => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File(["a ``` fence\n"], "notes.txt", { type: "text/plain" }));
    for (const type of ["dragover", "drop"]) dispatchEvent(new DragEvent(type, { dataTransfer, cancelable: true }));
  });
  await page.waitForSelector(".chip:not(:has(.spin))");
  await page.setInputFiles("#attach", recording);
  await page.waitForFunction(() => document.querySelectorAll(".chip:not(:has(.spin))").length === 2);
  const body = await bodyOf(page, () => write(page, "read"));
  await ended(page);
  const { content } = body.messages.at(-1);
  assert.match(content, /^File notes\.txt:\n````\na ``` fence\n\n````\n\nTranscript of the recording audio\.wav:\n.+\n\nread$/s);
  assert.equal(await page.locator("#log .files li").count(), 2);
  // A file that the page cannot read is named.
  await page.setInputFiles("#attach", { name: "blob.bin", mimeType: "application/octet-stream", buffer: Buffer.from([0, 255, 254]) });
  await page.waitForFunction(() => document.querySelector(".toast")?.textContent === "blob.bin is not a text file.");
  assert.equal(await page.locator(".chip").count(), 0);
}

async function speech() {
  const sent = [], heard = [];
  const where = "**/v1/audio/transcriptions";
  // The model of the test hears nothing in the browser's own sound, so it gets the recording of its case in its place.
  await page.route(where, async (route) => {
    const body = route.request().postDataBuffer();
    sent.push(body.length - body.indexOf("RIFF"));
    const form = new FormData();
    for (const [name, value] of [["model", "parakeet-tdt"], ["response_format", "verbose_json"]]) form.append(name, value);
    form.append("file", new Blob([readFileSync(recording)]), "audio.wav");
    const made = new Response(form);
    const headers = { ...route.request().headers(), "content-type": made.headers.get("content-type") };
    const response = await route.fetch({ headers, postData: Buffer.from(await made.arrayBuffer()) });
    heard.push((await response.json()).segments.map(({ text }) => text).join("").trim());
    await route.fulfill({ response });
  });
  await page.click("#mic");
  await page.waitForFunction(() => document.getElementById("prompt").value !== "");
  assert(await page.isDisabled("#send"), "a message is not sent while it is spoken");
  await page.waitForTimeout(1500);
  await page.click("#mic");
  await page.waitForFunction(() => document.getElementById("status").textContent === "The recording is transcribed.");
  await page.unroute(where);
  assert(sent.length > 1 && sent.every((bytes, at) => bytes >= (sent[at - 1] ?? 32_000)) && sent.at(-1) > sent[0], `windows of sound grow: ${sent} bytes`);
  assert.notEqual(heard.at(-1), "");
  assert.equal(await page.inputValue("#prompt"), heard.at(-1));
  await page.fill("#prompt", "");
}

async function keyboard() {
  await page.getByRole("button", { name: "New chat", exact: true }).click();
  await page.reload();
  await page.waitForSelector("#model");
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt", "one can write at once");
  await page.focus(".skip");
  assert((await page.locator(".skip").boundingBox()).width > 100, "the link is seen once it has the focus");
  await page.keyboard.press("Enter");
  await page.keyboard.type("the cat");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("sat");
  assert.equal(await page.inputValue("#prompt"), "the cat\nsat");
  await page.keyboard.press("Control+k");
  await page.waitForFunction(() => document.activeElement.id === "search");
  await page.keyboard.press("Control+/");
  await page.waitForSelector("dialog[open]");
  await checkAccess(page);
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "detached" });
  await page.keyboard.press("Control+b");
  await page.waitForSelector("#sidebar", { state: "detached" });
  await page.keyboard.press("Control+b");
  await page.locator(".entry-open").first().click();
  await page.fill("#prompt", "");
  await page.press("#prompt", "ArrowUp");
  await page.waitForSelector(".editor");
  await page.keyboard.press("Escape");
  await page.waitForSelector(".editor", { state: "detached" });
}

const colour = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).map(Number));
const isDark = ([r, g, b]) => r + g + b < 200;

async function dark() {
  const night = await open({ colorScheme: "dark" });
  assert(isDark(await colour(night)), "dark as the system");
  await night.click("#toggle-panel");
  await night.getByRole("radio", { name: "Light" }).check({ force: true });
  assert(!isDark(await colour(night)), "light by choice");
  await night.getByRole("radio", { name: "Dark" }).check({ force: true });
  await night.click("#toggle-panel");
  await choose(night, "rich");
  await ask(night, "show");
  await night.waitForSelector(".katex");
  await night.waitForSelector(".hljs-keyword");
  await checkAccess(night);
  if (screenshots) await night.screenshot({ path: `${screenshots}/page-dark.png` });
  await night.context().close();
}

async function narrow() {
  const phone = await open({ viewport: { width: 320, height: 640 }, hasTouch: true });
  await choose(phone, "rich");
  await ask(phone, "where is the cat ? ".repeat(10));
  const [width, inner] = await phone.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert(width <= inner, `the page is ${width} wide on a screen of ${inner}`);
  const wide = await phone.evaluate(() => [...document.querySelectorAll("#log .message")].filter((message) => message.scrollWidth > innerWidth).length);
  assert.equal(wide, 0, "messages fit the screen");
  for (const id of ["prompt", "send", "model", "show-chats"]) assert(await phone.isVisible(`#${id}`), id);
  await checkAccess(phone);
  await phone.click("#show-chats");
  await checkAccess(phone);
  await phone.locator(".entry-open").first().click();
  await phone.waitForSelector("#sidebar", { state: "detached" });
  await phone.context().close();
}

async function accessible() {
  await page.click("#toggle-panel");
  await checkAccess(page);
  await page.click("#toggle-panel");
  await page.click("#model");
  await checkAccess(page);
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "New chat", exact: true }).click();
  await checkAccess(page);
  if (screenshots) await page.screenshot({ path: `${screenshots}/page.png` });
}

async function alone() {
  assert.deepEqual(foreign, [], "no request to another host");
  assert.deepEqual(faults, [], "no error in the page");
  assert.equal(await page.evaluate(() => window.violations), undefined, "nothing that the page's policy forbids");
}

const worked = [];
const steps = { models, conversation, rich, hostile, thoughts, branches, stopped, cut, lost, list, settings, files, speech, keyboard, dark, narrow, accessible, alone };
for (const [name, step] of Object.entries(steps)) {
  await step(page);
  worked.push(name);
}
await browser.close();
console.log(JSON.stringify(worked));
