// Markdown as elements. Text never becomes markup: a model's words cannot run as code here.

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const SPANS = [
  [/`([^`\n]+)`/, (found) => element("code", { textContent: found[1] })],
  [/\*\*([^*\n]+)\*\*/, (found) => element("strong", {}, ...spans(found[1]))],
  [/\*([^*\s][^*\n]*)\*/, (found) => element("em", {}, ...spans(found[1]))],
  [/\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/, (found) => element("a", { textContent: found[1], href: found[2], rel: "noreferrer noopener", target: "_blank" })],
];

// Code, emphasis and links within a line.
function spans(text) {
  let first = null;
  for (const [pattern, make] of SPANS) {
    const found = pattern.exec(text);
    if (found && (!first || found.index < first.found.index)) first = { found, make };
  }
  if (!first) return text ? [text] : [];
  const { found, make } = first;
  return [text.slice(0, found.index), make(found), ...spans(text.slice(found.index + found[0].length))];
}

const ITEM = /^\s*(?:[-*+]|(\d+)[.)])\s+(.*)$/;

function block(lines) {
  const heading = /^(#{1,6})\s+(.*)$/.exec(lines[0]);
  if (heading && lines.length === 1) return element(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...spans(heading[2]));
  const items = lines.map((line) => ITEM.exec(line));
  if (items.every(Boolean)) {
    return element(items[0][1] ? "ol" : "ul", {}, ...items.map((item) => element("li", {}, ...spans(item[2]))));
  }
  return element("p", {}, ...spans(lines.join("\n")));
}

export function markdown(text) {
  const out = document.createElement("div");
  let held = [], code = null;
  const flush = () => {
    if (held.length) out.append(block(held));
    held = [];
  };
  for (const line of text.split("\n")) {
    if (line.trimStart().startsWith("```")) {
      flush();
      if (code) out.append(element("pre", { tabIndex: 0 }, element("code", { textContent: code.join("\n") })));
      code = code ? null : [];
    } else if (code) code.push(line);
    else if (!line.trim()) flush();
    else {
      const starts = /^#{1,6}\s/.test(line) || (held.length && ITEM.test(line) !== ITEM.test(held[0]));
      if (starts) flush();
      held.push(line);
      if (/^#{1,6}\s/.test(line)) flush();
    }
  }
  if (code) out.append(element("pre", { tabIndex: 0 }, element("code", { textContent: code.join("\n") })));
  flush();
  return out;
}
