// Sending messages, and answers as they come.
import { batch } from "@preact/signals";
import { chat as ask, resume } from "./api";
import { endOf, Growing } from "./growing";
import { announce, createChat, current, find, model, open, refreshModels, running, update, type Running } from "./state";
import { branch, newestLeaf, newId, prune, put, titleOf } from "./tree";
import type { Attachment, Chat, ChatOptions, End, Message } from "./types";

/** A message as the model reads it, with its files in front. */
export function asRead(message: Message): string {
  const files = (message.attachments ?? []).map(({ name, kind, text }) => {
    if (kind === "audio") return `Transcript of the recording ${name}:\n${text}`;
    const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `File ${name}:\n${fence}\n${text}\n${fence}`;
  });
  return [...files, message.content].filter(Boolean).join("\n\n");
}

function request(chat: Chat, path: Message[]): Record<string, unknown> {
  const { system, think, schema, ...sampling }: ChatOptions = chat.options;
  const past = path.filter((message) => message.content || message.attachments?.length);
  const body: Record<string, unknown> = { model: model.value?.id, ...sampling };
  body.messages = [
    ...(system?.trim() ? [{ role: "system", content: system.trim() }] : []),
    ...past.map((message) => ({ role: message.role, content: asRead(message) })),
  ];
  if (think) body.chat_template_kwargs = { enable_thinking: think === "on" };
  if (schema?.trim()) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } };
  return body;
}

/** Adds the user's message to the shown branch, and answers it. */
export function send(content: string, attachments: Attachment[] = []): void {
  const chat = current.value ?? createChat(titleOf(content || attachments[0]?.name || ""));
  if (running.value[chat.id]) return;
  addUser(chat, chat.leaf, content, attachments);
}

function addUser(chat: Chat, parent: string | null, content: string, attachments: Attachment[]): void {
  const message: Message = { id: newId(), parent, role: "user", content, created: Date.now() };
  if (attachments.length) message.attachments = attachments;
  const changed = { ...put(chat, message), leaf: message.id, updated: Date.now() };
  update(changed);
  void answer(changed.id, message.id);
}

/** Another version of a user's message, in a branch of its own. */
export function edit(message: Message, content: string): void {
  const chat = current.value;
  if (chat && !running.value[chat.id]) addUser(chat, message.parent, content, message.attachments ?? []);
}

/** Another version of an answer, with a text of the user's. */
export function revise(message: Message, content: string): void {
  const chat = current.value;
  if (!chat || running.value[chat.id]) return;
  const { figures: _, error: __, ...rest } = message;
  update(put(chat, { ...rest, id: newId(), content, created: Date.now(), end: "complete" }));
}

/** Another answer to the same message. */
export function regenerate(message: Message): void {
  const chat = current.value;
  if (chat && message.parent && !running.value[chat.id]) void answer(chat.id, message.parent);
}

/** Continues an answer that was cut. */
export function continueAnswer(message: Message): void {
  const chat = current.value;
  if (chat && message.parent && !running.value[chat.id]) void answer(chat.id, message.parent, message);
}

/** Shows the branch of a message. */
export function select(id: string): void {
  const chat = current.value;
  if (chat) update({ ...chat, leaf: newestLeaf(chat, id) });
}

export function removeMessage(id: string): void {
  const chat = current.value;
  if (!chat) return;
  stop(chat.id);
  update(prune(chat, id));
}

export function stop(chatId = current.value?.id): void {
  if (chatId) running.value[chatId]?.control.abort();
}

/** A chat that begins like this one, up to a message. */
export function fork(id: string): void {
  const chat = current.value;
  if (!chat) return;
  const path = branch(chat, id);
  const made: Chat = { ...chat, id: newId(), title: `${chat.title} (copy)`, created: Date.now(), updated: Date.now(), leaf: id };
  made.messages = Object.fromEntries(path.map((message) => [message.id, message]));
  update(made);
  open(made.id);
}

function setRunning(chatId: string, change: Partial<Running> | null): void {
  const { [chatId]: now, ...others } = running.value;
  running.value = change ? { ...others, [chatId]: { ...now, ...change } as Running } : others;
}

const SPOKEN: Record<End, string> = {
  complete: "The answer is complete.",
  length: "The answer was cut at the limit on tokens.",
  stopped: "Stopped.",
  lost: "The connection was lost. The answer is incomplete.",
  failed: "The answer failed.",
};

/** Milliseconds between writes of a growing answer to the browser's store. */
const KEEP_EVERY = 2000;

/** Answers a message, or goes on with an answer to it. */
async function answer(chatId: string, parent: string, earlier?: Message): Promise<void> {
  const chat = find(chatId);
  if (!chat) return;
  const control = new AbortController();
  const fresh: Message = { id: newId(), parent, role: "assistant", content: "", created: Date.now(), model: model.value?.id };
  const growing = new Growing(earlier ? { ...earlier, end: undefined, error: undefined } : fresh);
  const { id } = growing.message;
  batch(() => {
    update({ ...put(chat, growing.message), leaf: id }, false);
    setRunning(chatId, { control, messageId: id, began: growing.began, parts: 0 });
  });
  announce("Waiting for the model.");
  const { draw, cancel } = drawer(chatId, growing);
  let ended: { end: End; error?: string };
  try {
    const body = request(chat, branch(chat, parent));
    const deltas = earlier?.content ? resume(body, earlier.content, control.signal) : ask(body, control.signal);
    for await (const delta of deltas) {
      growing.take(delta);
      draw();
    }
    ended = growing.end();
  } catch (error) {
    ended = endOf(error);
  }
  cancel();
  finishAnswer(chatId, growing.finished(ended));
}

/** Puts a growing answer on the screen, once a frame. */
function drawer(chatId: string, growing: Growing): { draw(): void; cancel(): void } {
  let frame = 0;
  let saved = performance.now();
  const paint = () => {
    frame = 0;
    const chat = find(chatId);
    if (!chat?.messages[growing.message.id]) return;
    // The part that came is kept now and then, should the page be closed.
    const keep = performance.now() - saved > KEEP_EVERY;
    if (keep) saved = performance.now();
    if (growing.first !== undefined && running.value[chatId]?.firstPart === undefined) announce("The model answers.");
    batch(() => {
      update(put(chat, growing.message), keep);
      setRunning(chatId, { parts: growing.parts, firstPart: growing.first });
    });
  };
  return { draw: () => (frame ||= requestAnimationFrame(paint)), cancel: () => cancelAnimationFrame(frame) };
}

function finishAnswer(chatId: string, message: Message): void {
  const now = find(chatId);
  batch(() => {
    setRunning(chatId, null);
    if (now?.messages[message.id]) update({ ...put(now, message), updated: Date.now() });
  });
  announce(message.error ?? SPOKEN[message.end!]);
  // The request may have loaded or unloaded a model, or the server may be gone.
  void refreshModels();
}
