"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const MOST = 300;
const byId = (id) => document.getElementById(id);

// An element with attributes and children. Texts are never read as HTML.
function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${unit ? count.toFixed(1) : count} ${units[unit]}`;
}
const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
const shownCount = (delegate) => {
  const inside = (delegate.nodes || []).length - (delegate.main || 0);
  return `${counted(delegate.main || 0, "node")}${inside ? ` and ${inside} in branches and loops` : ""}`;
};
const micros = (time) => (time >= 1000 ? `${(time / 1000).toFixed(2)} ms` : `${time.toFixed(1)} µs`);

// Every delegate is a graph to choose. The operands of a node are the nodes that it reads.
const graphs = data.methods.flatMap((method) => method.delegates.filter((d) => d.nodes).map((delegate) => ({ method, delegate })));
for (const { delegate } of graphs) {
  delegate.operands = delegate.nodes.map(() => []);
  delegate.nodes.forEach((node, at) => node.readers.forEach((reader) => delegate.operands[reader].push(at)));
  delegate.time = delegate.nodes.reduce((sum, node) => sum + (node.time || 0), 0);
}

// The node that runs the chain of a node, up to one of the main chain.
function* ancestors(delegate, at) {
  for (let node = at; node !== undefined && node !== null; node = delegate.nodes[node].parent) yield node;
}
const holds = (delegate, positions, at) => at !== null && at < delegate.nodes.length && [...ancestors(delegate, at)].some((node) => positions.includes(node));
const range = (start, count) => Array.from({ length: count }, (_, at) => start + at);

// The state is in the address, so that a view can be linked to.
function state() {
  const values = new URLSearchParams(location.hash.slice(1));
  const node = values.get("n");
  return { view: values.get("v") || "graph", graph: Number(values.get("g") || 0), node: node === null ? null : Number(node), query: values.get("q") || "" };
}
function go(change) {
  const next = { ...state(), ...change };
  const values = new URLSearchParams({ v: next.view, g: next.graph });
  if (next.node !== null) values.set("n", next.node);
  if (next.query) values.set("q", next.query);
  location.hash = values.toString();
}

function nodeRow(delegate, at, chosen) {
  const node = delegate.nodes[at];
  return el("button", { class: `node${chosen === at ? " chosen" : ""}`, "data-node": at, onclick: () => go({ node: at }) },
    el("span", { class: "soft" }, String(at)), el("b", {}, node.op), el("span", {}, node.result || ""),
    node.time ? el("span", { class: "time" }, micros(node.time)) : null);
}

// Consecutive nodes of one module form a group; groups nest by the parts of the module's path.
function groups(delegate, positions, depth) {
  const found = [];
  for (const at of positions) {
    const part = (delegate.nodes[at].module || "").split(".")[depth] || "";
    const last = found[found.length - 1];
    if (last && last.part === part) last.positions.push(at);
    else found.push({ part, positions: [at] });
  }
  return found;
}

// Rows of nodes in a row. Long runs are folded into parts, which are filled when they are opened.
function rowsOf(delegate, positions, chosen) {
  if (positions.length <= MOST) return positions.flatMap((at) => [nodeRow(delegate, at, chosen), ...branches(delegate, at, chosen)]);
  const parts = [];
  for (let start = 0; start < positions.length; start += MOST) {
    const own = positions.slice(start, start + MOST);
    parts.push(folder(`nodes ${own[0]} to ${own[own.length - 1]}`, "", holds(delegate, own, chosen), () => rowsOf(delegate, own, chosen)));
  }
  return parts;
}

// The branches or the body of a node, folded below its row.
function branches(delegate, at, chosen) {
  return (delegate.nodes[at].chains || []).map(([name, start, count]) => {
    const own = range(start, count);
    return folder(`${name} of ${at}`, ` ${counted(count, "node")}`, at === chosen || holds(delegate, own, chosen), () => rowsOf(delegate, own, chosen));
  });
}

// A folded group, which is filled when it is opened.
function folder(name, count, isOpen, contents) {
  const folded = el("details", {}, el("summary", {}, name, el("span", { class: "count" }, count)));
  const fill = () => { if (folded.childElementCount === 1) folded.append(...contents()); };
  folded.addEventListener("toggle", fill);
  if (isOpen) { fill(); folded.open = true; }
  return folded;
}

function tree(delegate, positions, depth, chosen) {
  const part = document.createDocumentFragment();
  for (const group of groups(delegate, positions, depth)) {
    if (!group.part) { part.append(...rowsOf(delegate, group.positions, chosen)); continue; }
    // A chain of modules with one child each is one line.
    let [name, deep] = [group.part, depth + 1];
    for (;;) {
      const inner = groups(delegate, group.positions, deep);
      if (inner.length !== 1 || !inner[0].part) break;
      name += `.${inner[0].part}`;
      deep += 1;
    }
    const time = group.positions.reduce((sum, at) => sum + (delegate.nodes[at].time || 0), 0);
    const count = ` ${counted(group.positions.length, "node")}${time ? `, ${micros(time)}` : ""}`;
    part.append(folder(name, count, holds(delegate, group.positions, chosen), () => [tree(delegate, group.positions, deep, chosen)]));
  }
  return part;
}

const has = (query, ...texts) => query.toLowerCase().split(/\s+/).every((word) => texts.some((text) => (text || "").toLowerCase().includes(word)));

function graphView(delegate, { query, node: chosen }) {
  if (!query) return tree(delegate, range(0, delegate.main), 0, chosen);
  const weights = (node) => node.weights.map((at) => delegate.weights[at].name).join(" ");
  const found = [...delegate.nodes.keys()].filter((at) => {
    const node = delegate.nodes[at];
    return has(query, node.op, node.text, node.module, node.result, node.source, weights(node));
  });
  return el("div", {}, el("p", { class: "soft", id: "found" }, `${found.length} of ${delegate.nodes.length} nodes`),
    ...found.slice(0, MOST).map((at) => nodeRow(delegate, at, chosen)));
}

function table(heads, rows) {
  return el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", {}, head)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell) =>
      el("td", typeof cell === "object" && cell !== null ? {} : { class: /^[\d.]+ (B|[KMG]iB)$/.test(cell) ? "number" : "text" }, cell ?? ""))))));
}
const links = (positions) => el("span", {}, ...positions.slice(0, 20).map((at) => el("button", { class: "link", onclick: () => go({ view: "graph", node: at, query: "" }) }, String(at))));

function weightsView(delegate, { query }) {
  const users = delegate.weights.map(() => []);
  delegate.nodes.forEach((node, at) => node.weights.forEach((weight) => users[weight].push(at)));
  const order = [...delegate.weights.keys()].filter((at) => !query || has(query, delegate.weights[at].name, delegate.weights[at].type));
  order.sort((a, b) => delegate.weights[b].bytes - delegate.weights[a].bytes);
  const total = order.reduce((sum, at) => sum + delegate.weights[at].bytes, 0);
  return el("div", {}, el("p", { class: "soft", id: "found" }, `${order.length} weights and buffers, ${bytes(total)}`),
    table(["Name", "Kind", "Type", "Size", "Nodes"], order.slice(0, 10 * MOST).map((at) => {
      const weight = delegate.weights[at];
      return [weight.name, weight.kind, weight.type, bytes(weight.bytes), links(users[at])];
    })));
}

function memoryView(delegate, _, method) {
  const widest = Math.max(1, ...method.planned.map((value) => value.offset + value.bytes));
  const rows = method.planned.map((value) => {
    const [left, width] = [(100 * value.offset) / widest, Math.max(0.3, (100 * value.bytes) / widest)];
    const bar = el("span", { class: "bar" });
    bar.style.marginLeft = `${left}%`;
    bar.style.width = `${width}%`;
    const place = el("div", {}, bar);
    return [`value ${value.value}`, value.type, `arena ${value.arena}`, String(value.offset), bytes(value.bytes), place];
  });
  return el("div", {}, el("p", { class: "soft", id: "found" }, `planned arenas: ${method.arenas.map(bytes).join(", ") || "none"}`),
    table(["Value", "Type", "Arena", "Offset", "Size", "Place"], rows));
}

function sourceView(delegate, { query }) {
  const lines = new Map();
  delegate.nodes.forEach((node, at) => {
    if (!node.source || (query && !has(query, node.source))) return;
    if (!lines.has(node.source)) lines.set(node.source, []);
    lines.get(node.source).push(at);
  });
  const kinds = (positions) => [...new Set(positions.map((at) => delegate.nodes[at].op))].join(" ");
  return el("div", {}, el("p", { class: "soft", id: "found" }, `${lines.size} source lines`),
    table(["Source line", "Nodes", "Became"], [...lines].slice(0, 10 * MOST).map(([source, positions]) => [source, links(positions), kinds(positions)])));
}

function overview() {
  const part = el("div", {});
  for (const method of data.methods) {
    part.append(el("h2", {}, `method ${method.name}`), table(["Kind", "Value"], [
      ...method.inputs.map((text, at) => [`input ${at}`, text]), ...method.outputs.map((text, at) => [`output ${at}`, text]),
      ...method.delegates.map((delegate, at) => [`delegate ${at}`, delegate.error || `${delegate.id}, ${bytes(delegate.payload)}, ${shownCount(delegate)}`]),
      ...Object.entries(method.kernels).map(([name, count]) => ["kernel", `${name}, ${count} calls`]),
    ]), el("h2", {}, "instructions"), el("pre", {}, method.instructions.join("\n")));
  }
  for (const [name, values] of Object.entries(data.constants)) part.append(el("p", {}, `constant ${name} = ${JSON.stringify(values)}`));
  return part;
}

// A node with its operands and readers, up to two steps away, one row for each distance.
function neighbours(delegate, at) {
  const rows = new Map([[0, [at]]]);
  const seen = new Set([at]);
  for (const [sign, next] of [[-1, (n) => delegate.operands[n]], [1, (n) => delegate.nodes[n].readers]]) {
    let last = [at];
    for (const distance of [1, 2]) {
      const found = [...new Set(last.flatMap(next))].filter((n) => !seen.has(n)).slice(0, 6);
      found.forEach((n) => seen.add(n));
      if (found.length) rows.set(sign * distance, found);
      last = found;
    }
  }
  return rows;
}

// The nodes of a branch or a body, each below its operands. A long one is cut.
function inner(delegate, start, count) {
  const depths = new Map();
  for (const at of range(start, Math.min(count, 60))) {
    const before = delegate.operands[at].filter((operand) => depths.has(operand)).map((operand) => depths.get(operand));
    depths.set(at, Math.max(-1, ...before) + 1);
  }
  const rows = new Map();
  for (const [at, depth] of depths) rows.set(depth, [...(rows.get(depth) || []), at].slice(0, 6));
  return [...rows].sort((a, b) => a[0] - b[0]);
}

function drawing(delegate, at, rows, label) {
  const shape = (name, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const [width, height, box] = [640, 64, 96];
  const places = new Map();
  rows.forEach(([, positions], row) => positions.forEach((n, column) => {
    places.set(n, { x: ((column + 0.5) * width) / positions.length, y: 24 + row * height });
  }));
  const svg = shape("svg", { viewBox: `0 0 ${width} ${24 + rows.length * height}`, role: "img", "aria-label": label });
  for (const [from, a] of places) {
    for (const to of delegate.nodes[from].readers.filter((reader) => places.has(reader))) {
      const b = places.get(to);
      svg.append(shape("path", { d: `M${a.x},${a.y + 14} C${a.x},${a.y + 40} ${b.x},${b.y - 40} ${b.x},${b.y - 14}` }));
    }
  }
  for (const [n, { x, y }] of places) {
    const group = shape("g", { class: n === at ? "self" : "other" }, shape("rect", { x: x - box / 2, y: y - 14, width: box, height: 28, rx: 6 }),
      shape("text", { x, y: y + 4, "text-anchor": "middle" }, `${n} ${delegate.nodes[n].op}`.slice(0, 17)));
    group.addEventListener("click", () => go({ node: n }));
    svg.append(group);
  }
  return svg;
}

function detail(delegate, at) {
  const node = at === null || !delegate ? null : delegate.nodes[at];
  if (!node) return el("p", { class: "soft" }, "Choose a node to see its operands, readers and weights.");
  const part = el("div", { id: "node" }, el("h2", {}, `node ${at}`), el("code", {}, node.text),
    node.result ? el("p", {}, `result ${node.result}`) : null,
    node.module ? el("p", {}, `module ${node.module}`) : null,
    node.source ? el("p", {}, `from ${node.source}`) : null,
    node.time ? el("p", {}, `${micros(node.time)} a run, ${((100 * node.time) / delegate.time).toFixed(1)} % of the delegate`) : null,
    node.parent === undefined ? null : el("p", {}, `${node.branch} of node `, links([node.parent])),
    drawing(delegate, at, [...neighbours(delegate, at)].sort((a, b) => a[0] - b[0]), "Neighbours of the node"),
    ...(node.chains || []).flatMap(([name, start, count]) => [el("h2", {}, `${name}: ${counted(count, "node")}`),
      count ? drawing(delegate, at, inner(delegate, start, count), `Nodes of ${name}`) : null]),
    el("h2", {}, "operands"), links(delegate.operands[at]), el("h2", {}, "readers"), links(node.readers));
  if (node.weights.length) {
    part.append(el("h2", {}, "weights"), table(["Name", "Type", "Size"], node.weights.map((weight) => {
      const { name, type, bytes: size } = delegate.weights[weight];
      return [name, type, bytes(size)];
    })));
  }
  return part;
}

const VIEWS = { graph: graphView, weights: weightsView, memory: memoryView, source: sourceView, overview };

function show() {
  const now = state();
  const { method, delegate } = graphs[now.graph] || {};
  const view = graphs.length ? now.view : "overview";
  byId("views").replaceChildren(...Object.keys(VIEWS).map((name) =>
    el("button", { "aria-current": String(name === view), onclick: () => go({ view: name }) }, name)));
  byId("graph").value = String(now.graph);
  if (byId("search").value !== now.query) byId("search").value = now.query;
  byId("list").replaceChildren((VIEWS[view] || graphView)(delegate, now, method));
  byId("detail").replaceChildren(detail(delegate, now.node));
  const chosen = document.querySelector(".node.chosen");
  if (chosen) chosen.scrollIntoView({ block: "nearest" });
}

byId("title").textContent = `${data.file}, ${bytes(data.bytes)}`;
byId("graph").append(...graphs.map(({ method, delegate }, at) => el("option", { value: at }, `${method.name}, delegate ${delegate.number}: ${shownCount(delegate)}`)));
byId("graph").addEventListener("change", (event) => go({ graph: Number(event.target.value), node: null }));
byId("search").addEventListener("input", (event) => go({ query: event.target.value }));
window.addEventListener("hashchange", show);
show();
