// Answers in Markdown: every form has its elements, and nothing in an answer acts.
import assert from "node:assert/strict";
import { ask, choose, last, set } from "./browser.mjs";

export async function rich(page) {
  await page.getByRole("button", { name: "New chat", exact: true }).click();
  await choose(page, "rich");
  await set(page, { max_tokens: "" });
  assert.equal(await ask(page, "show"), "The answer is complete.");
  await page.waitForSelector("#log .katex-display");
  await page.waitForSelector("#log .hljs-keyword");
  const answer = last(page).locator(".markdown");
  const count = (selector) => answer.locator(selector).count();
  const elements = {
    "h1": 1, "strong": 1, "em": 1, "s": 1, "sub": 1, "tbody tr": 2, "td br": 1, "th[align=right]": 1,
    "ol > li": 2, "ol ul ul > li": 1, "blockquote blockquote": 1, ".markdown-alert-note": 1,
    "input[type=checkbox]": 2, "input:checked": 1, ".code": 4, ".katex": 4, ".katex-display": 2, "math": 4,
  };
  for (const [selector, expected] of Object.entries(elements)) assert.equal(await count(selector), expected, selector);
  const text = await answer.textContent();
  assert(text.includes("a Vec<String> outside of code") && text.includes("prices of $5 and $10"), text);
  assert.deepEqual(await answer.locator(".code-head span").allTextContents(), ["python", "markdown", "unknownlanguage", "text"]);
  assert.equal(await answer.locator(".code code").nth(1).textContent(), "```js\ninside();\n```\n");
  assert.equal(await answer.locator("img").evaluate((image) => image.naturalWidth), 1, "an image in the text is shown");
  assert.deepEqual(await answer.locator("a").evaluateAll((links) => links.map(({ target, rel }) => [target, rel])), [["_blank", "noopener noreferrer nofollow"]]);
  await answer.getByRole("button", { name: "Copy code" }).first().click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'def greet(name):\n    return f"Hello {name}"');
  await page.getByRole("button", { name: "Copy message" }).last().click();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^# Everything at once\n[^]*\$\$\nx = /);
  // Fonts of formulas come from this server.
  assert(await page.evaluate(() => document.fonts.ready.then((fonts) => [...fonts].some(({ family, status }) => family.includes("KaTeX") && status === "loaded"))));
}

export async function hostile(page) {
  let dialogs = 0;
  page.on("dialog", (dialog) => (dialogs++, dialog.dismiss()));
  await choose(page, "hostile");
  assert.equal(await ask(page, "attack"), "The answer is complete.");
  const answer = last(page).locator(".markdown");
  assert.match(await answer.textContent(), /The end\./);
  await page.waitForTimeout(300);
  const breaches = await answer.evaluate((root) =>
    [...root.querySelectorAll("*")].flatMap((element) => {
      const found = ["SCRIPT", "IFRAME", "OBJECT", "EMBED", "STYLE", "FORM", "LINK", "META", "BASE"].includes(element.tagName) ? [element.tagName] : [];
      for (const { name, value } of element.attributes) {
        const isAddress = ["href", "src", "xlink:href", "action", "formaction", "srcdoc"].includes(name);
        if (name.startsWith("on") || (isAddress && !/^(https?:|data:image\/(png|jpe?g|gif|webp);|mailto:|#)/.test(value))) found.push(`${element.tagName} ${name}=${value}`);
        if (name === "style" && !element.closest(".katex")) found.push(`${element.tagName} style`);
      }
      return found;
    }),
  );
  assert.deepEqual(breaches, []);
  for (const link of await answer.locator("a").all()) assert.equal(await link.getAttribute("target"), "_blank");
  assert.equal(await page.evaluate(() => window.hacked), undefined, "no script of an answer ran");
  assert.equal(dialogs, 0);
  // The text of what was taken out stays visible.
  assert.match(await answer.textContent(), /<script>window\.hacked = 1<\/script>/);
  assert.equal(await answer.locator("img").count(), 1, "only images in the text are shown");
}
