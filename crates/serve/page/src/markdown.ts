// Markdown to DOM: markdown-it makes HTML, DOMPurify keeps its harmless part.
import MarkdownIt from "markdown-it";
import { alert } from "@mdit/plugin-alert";
import { tasklist } from "@mdit/plugin-tasklist";
import { tex } from "@mdit/plugin-tex";
import DOMPurify, { type Config } from "dompurify";

const escape = (text: string) => MarkdownIt().utils.escapeHtml(text);

const markdown: MarkdownIt = MarkdownIt({ html: true, linkify: true, breaks: false })
  .use(alert)
  .use(tasklist, { label: true })
  .use(tex, { delimiters: "all", render: (source, display) => `<span class="math${display ? " block" : ""}">${escape(source)}</span>` });

// A name such as `notes.md` is no address.
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });

/** Tags that models write in Markdown. Other tags stay visible text, so `Vec<T>` loses nothing. */
const BARE_TAG = /&lt;(\/?(?:br|sub|sup|kbd|b|i|u|s|em|strong|mark|small|details|summary)) ?\/?&gt;/gi;
const tags = (text: string) => escape(text).replace(BARE_TAG, "<$1>");
markdown.renderer.rules.html_inline = (tokens, at) => tags(tokens[at]!.content);
markdown.renderer.rules.html_block = (tokens, at) => tags(tokens[at]!.content);

// An image elsewhere would tell its server about the conversation, so it becomes a link.
const image = markdown.renderer.rules.image!;
markdown.renderer.rules.image = (tokens, at, options, env, self) => {
  const token = tokens[at]!;
  const source = token.attrGet("src") ?? "";
  if (source.startsWith("data:image/")) return image(tokens, at, options, env, self);
  return `<a href="${escape(source)}">${escape(token.content || source)}</a>`;
};

// A table scrolls on its own on narrow screens.
markdown.renderer.rules.table_open = () => '<div class="table"><table>\n';
markdown.renderer.rules.table_close = () => "</table></div>\n";

// The page's policy forbids style attributes, so cells are aligned by an attribute of their own.
for (const cell of ["th_open", "td_open"]) {
  markdown.renderer.rules[cell] = (tokens, at) => {
    const [, side] = /text-align:(\w+)/.exec(String(tokens[at]!.attrGet("style"))) ?? [];
    return `<${tokens[at]!.tag}${side ? ` align="${side}"` : ""}>`;
  };
}

const HARMLESS: Config & { RETURN_DOM_FRAGMENT: true } = {
  RETURN_DOM_FRAGMENT: true,
  USE_PROFILES: { html: true },
  FORBID_TAGS: ["style", "form", "iframe", "video", "audio", "source", "picture", "template", "dialog"],
  FORBID_ATTR: ["style", "id", "name", "srcset", "action", "formaction", "popovertarget"],
};

/** The HTML of each top-level block of a text. */
export function blocks(text: string): string[] {
  const env = {};
  const made: string[] = [];
  let from = 0;
  let depth = 0;
  const tokens = markdown.parse(text, env);
  tokens.forEach((token, at) => {
    depth += token.nesting;
    if (depth === 0) {
      made.push(markdown.renderer.render(tokens.slice(from, at + 1), markdown.options, env));
      from = at + 1;
    }
  });
  return made.filter((html) => html.trim());
}

/** The harmless part of HTML, as DOM. */
export function harmless(html: string): DocumentFragment {
  const made = DOMPurify.sanitize(html, HARMLESS);
  for (const link of made.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const box of made.querySelectorAll("input")) {
    box.disabled = true;
    box.setAttribute("aria-label", box.checked ? "done" : "open");
  }
  return made;
}

/** Marked tokens of code, as DOM. */
export function tokens(html: string): DocumentFragment {
  return DOMPurify.sanitize(html, { RETURN_DOM_FRAGMENT: true, ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"] });
}
