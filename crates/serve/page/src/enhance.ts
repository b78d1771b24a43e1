// What a block of an answer gets beyond its HTML: headers of code, colours, formulas.
import { tokens } from "./markdown";
import { announce } from "./state";

/** Loads a part of the bundle once. */
function once<T>(load: () => Promise<T>): () => Promise<T> {
  let loading: Promise<T> | undefined;
  return () => (loading ??= load());
}

const loadMath = once(() => import("./math"));
const loadHighlight = once(() => import("./highlight"));

/** Longest code that gets colours, in characters. */
const LONGEST = 100_000;

export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied.");
    return true;
  } catch {
    announce("The browser does not allow copying.");
    return false;
  }
}

function copyButton(code: HTMLElement): HTMLButtonElement {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy code");
  button.addEventListener("click", async () => {
    button.textContent = (await copy((code.textContent ?? "").replace(/\n$/, ""))) ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

function frame(code: HTMLElement): void {
  const pre = code.parentElement!;
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  const figure = document.createElement("div");
  figure.className = "code";
  const head = document.createElement("div");
  head.className = "code-head";
  const label = document.createElement("span");
  label.textContent = language || "text";
  head.append(label, copyButton(code));
  pre.replaceWith(figure);
  pre.tabIndex = 0;
  figure.append(head, pre);
  const text = code.textContent ?? "";
  if (!language || text.length > LONGEST) return;
  void loadHighlight().then(({ highlight }) => {
    const marked = code.textContent === text ? highlight(text, language.toLowerCase()) : undefined;
    if (marked) code.replaceChildren(tokens(marked));
  });
}

export function enhance(block: DocumentFragment): DocumentFragment {
  for (const code of block.querySelectorAll<HTMLElement>("pre > code")) frame(code);
  const formulas = [...block.querySelectorAll<HTMLElement>("span.math")];
  if (formulas.length) void loadMath().then(({ typeset }) => formulas.forEach(typeset));
  for (const table of block.querySelectorAll<HTMLElement>("div.table")) table.tabIndex = 0;
  return block;
}
