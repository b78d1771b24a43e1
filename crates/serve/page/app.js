// The chat page: a conversation with a model of this server. Chats stay in this browser.
import { markdown } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const SETTINGS = ["system", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "scheme", "model"];
const STORE = "flambeau";

const load = () => {
  try { return JSON.parse(localStorage.getItem(STORE)) ?? {}; } catch { return {}; }
};
const state = Object.assign({ settings: {}, chats: [], current: 0 }, load());
let running = null;

// A key is a secret: it stays in this tab.
$("key").value = sessionStorage.getItem("flambeau-key") ?? "";

function save() {
  try { localStorage.setItem(STORE, JSON.stringify(state)); } catch { say("The browser has no room to keep this chat.", true); }
}

function chat() {
  if (!state.chats[state.current]) {
    state.chats.unshift({ title: "New chat", messages: [] });
    state.current = 0;
  }
  return state.chats[state.current];
}

function say(text, isError = false) {
  $("status").textContent = text;
  $("status").className = isError ? "error" : "";
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function button(text, action) {
  const made = element("button", { type: "button", textContent: text });
  made.addEventListener("click", action);
  return made;
}

// One message, with what can be done about it.
function article(message, at) {
  const mine = message.role === "user";
  const shown = element("article", { className: message.role }, element("h2", { textContent: mine ? "You" : "Model" }));
  if (message.reasoning) {
    const thoughts = element("details", {}, element("summary", { textContent: "Thoughts" }), element("p", { textContent: message.reasoning }));
    shown.append(thoughts);
  }
  if (mine) shown.append(element("p", { textContent: message.content }));
  else shown.append(markdown(message.content));
  if (message.error) shown.append(element("p", { className: "error", textContent: message.error }));
  const foot = element("footer");
  if (mine) foot.append(button("Edit", () => edit(at)));
  else foot.append(button("Copy", () => navigator.clipboard?.writeText(message.content)), button("Retry", () => retry(at)));
  if (message.figures) foot.append(element("span", { textContent: message.figures }));
  shown.append(foot);
  return shown;
}

function show() {
  const { messages } = chat();
  $("log").replaceChildren(...messages.map(article));
  const entries = state.chats.map((entry, at) => element("option", { value: at, textContent: entry.title, selected: at === state.current }));
  $("chats").replaceChildren(...entries);
}

// A copy of the chat up to a message, so that the other branch stays.
function branch(end) {
  const from = chat();
  if (from.messages.length > end) {
    state.chats.splice(state.current, 0, { title: `${from.title} (branch)`, messages: from.messages.slice(0, end) });
  }
  show();
}

function edit(at) {
  stop();
  $("prompt").value = chat().messages[at].content;
  branch(at);
  $("prompt").focus();
}

function retry(at) {
  stop();
  branch(at);
  answer();
}

function stop() {
  running?.abort();
}

function request() {
  const body = { model: $("model").value, stream: true, stream_options: { include_usage: true } };
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
    if ($(name).value !== "") body[name] = Number($(name).value);
  }
  const system = $("system").value.trim();
  const past = chat().messages.filter((message) => !message.error || message.content).map(({ role, content }) => ({ role, content }));
  body.messages = [...(system ? [{ role: "system", content: system }] : []), ...past];
  return body;
}

function headers() {
  const key = $("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

// The data of server-sent events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

async function fail(response) {
  const told = await response.json().catch(() => ({}));
  return new Error(told.error?.message ?? `the server answered with status ${response.status}`);
}

function figures(began, first, timings) {
  const parts = [`first token after ${((first - began) / 1000).toFixed(2)} s`];
  if (timings?.predicted_per_second) parts.unshift(`${timings.predicted_n} tokens, ${timings.predicted_per_second.toFixed(1)} tokens/s`);
  if (timings?.cache_n) parts.push(`${timings.cache_n} prompt tokens from the cache`);
  return parts.join(" · ");
}

async function answer() {
  const mine = chat();
  const body = request();
  const message = { role: "assistant", content: "", reasoning: "" };
  mine.messages.push(message);
  const control = (running = new AbortController());
  $("send").hidden = true;
  $("stop").hidden = false;
  say("Waiting for the model.");
  show();
  const began = performance.now();
  let first = 0, timings, drawn = 0;
  const draw = () => {
    drawn = 0;
    if (chat() === mine) $("log").lastChild?.replaceWith(article(message, mine.messages.length - 1));
    window.scrollTo({ top: document.body.scrollHeight });
  };
  try {
    const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal: control.signal });
    if (!response.ok) throw await fail(response);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices[0];
      timings = choice?.timings ?? event.timings ?? timings;
      message.reasoning += choice?.delta.reasoning_content ?? "";
      message.content += choice?.delta.content ?? "";
      if (!first && (message.content || message.reasoning)) {
        first = performance.now();
        say("The model answers.");
      }
      drawn ||= requestAnimationFrame(draw);
    }
    say("The answer is complete.");
  } catch (error) {
    if (error.name === "AbortError") say("Stopped.");
    else {
      message.error = error.message;
      say(error.message, true);
    }
  }
  if (first) message.figures = figures(began, first, timings);
  cancelAnimationFrame(drawn);
  if (running === control) {
    running = null;
    $("send").hidden = false;
    $("stop").hidden = true;
  }
  draw();
  save();
}

async function attach() {
  for (const file of $("attach").files) {
    const text = await file.text();
    $("prompt").value += `${$("prompt").value ? "\n\n" : ""}${file.name}:\n\`\`\`\n${text}\n\`\`\`\n`;
  }
  $("attach").value = "";
  $("prompt").focus();
}

async function listModels() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) {
    $("settings").hidden = false;
    throw await fail(response);
  }
  const listed = (await response.json()).data;
  const data = listed.filter(({ capabilities: can }) => can.chat ?? can.completion);
  const chosen = state.settings.model;
  $("model").replaceChildren(...data.map(({ id }) => element("option", { value: id, textContent: id, selected: id === chosen })));
  say("");
}

function settle() {
  for (const name of SETTINGS) state.settings[name] = $(name).value;
  document.documentElement.dataset.scheme = $("scheme").value;
  sessionStorage.setItem("flambeau-key", $("key").value);
  save();
}

for (const name of SETTINGS) {
  if (name !== "model") $(name).value = state.settings[name] ?? "";
  $(name).addEventListener("change", settle);
}
document.documentElement.dataset.scheme = $("scheme").value;
$("key").addEventListener("change", () => { settle(); listModels().catch((error) => say(error.message, true)); });
$("toggle-settings").addEventListener("click", () => {
  $("settings").hidden = !$("settings").hidden;
  $("toggle-settings").setAttribute("aria-expanded", String(!$("settings").hidden));
});
$("new").addEventListener("click", () => {
  stop();
  state.chats.unshift({ title: "New chat", messages: [] });
  state.current = 0;
  show();
  $("prompt").focus();
});
$("chats").addEventListener("change", () => { stop(); state.current = Number($("chats").value); show(); save(); });
$("delete").addEventListener("click", () => { stop(); state.chats.splice(state.current, 1); state.current = 0; show(); save(); });
$("stop").addEventListener("click", stop);
$("attach").addEventListener("change", attach);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const content = $("prompt").value.trim();
  if (!content || running) return;
  const current = chat();
  if (!current.messages.length) current.title = content.slice(0, 40);
  current.messages.push({ role: "user", content });
  $("prompt").value = "";
  answer();
});
chat();
show();
listModels().catch((error) => say(error.message, true));
