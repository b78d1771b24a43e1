// Sending messages, and answers as they come.
import { batch } from "@preact/signals";
import { chat as ask, resume, Refused, type Delta } from "./api";
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

const seconds = (from: number, to: number) => (to - from) / 1000;

/** Why an answer ended, from the error that ended it. */
function endOf(error: unknown): { end: End; error?: string } {
  if (error instanceof DOMException && error.name === "AbortError") return { end: "stopped" };
  if (error instanceof Refused) return { end: "failed", error: error.message };
  // What fetch throws when the connection breaks.
  if (error instanceof TypeError) return { end: "lost" };
  return { end: "failed", error: error instanceof Error ? error.message : String(error) };
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

/** Answers a message, or goes on with an answer to it. Writes the message on the screen once a frame. */
async function answer(chatId: string, parent: string, earlier?: Message): Promise<void> {
  const chat = find(chatId);
  if (!chat) return;
  const control = new AbortController();
  let message: Message = earlier
    ? { ...earlier, end: undefined, error: undefined }
    : { id: newId(), parent, role: "assistant", content: "", created: Date.now(), model: model.value?.id };
  const began = performance.now();
  batch(() => {
    update({ ...put(chat, message), leaf: message.id }, false);
    setRunning(chatId, { control, messageId: message.id, began, parts: 0 });
  });
  announce("Waiting for the model.");
  let frame = 0;
  let parts = 0;
  let first: number | undefined;
  let thought: number | undefined;
  let finish: string | undefined;
  let saved = began;
  const draw = () => {
    frame = 0;
    const now = find(chatId);
    // The part that came is kept now and then, should the page be closed.
    const keep = performance.now() - saved > KEEP_EVERY;
    if (keep) saved = performance.now();
    if (now?.messages[message.id]) {
      batch(() => {
        update(put(now, message), keep);
        setRunning(chatId, { parts, firstPart: first });
      });
    }
  };
  const take = (delta: Delta) => {
    if (delta.content || delta.reasoning) {
      parts += 1;
      if (first === undefined) {
        first = performance.now();
        announce("The model answers.");
      }
      if (delta.content && message.reasoning && thought === undefined) thought = performance.now();
    }
    finish = delta.finish ?? finish;
    message = { ...message, content: message.content + delta.content };
    if (delta.reasoning) message.reasoning = (message.reasoning ?? "") + delta.reasoning;
    if (delta.figures) message.figures = { ...message.figures, ...delta.figures, tokens: delta.figures.tokens || (message.figures?.tokens ?? 0) };
    frame ||= requestAnimationFrame(draw);
  };
  let ended: { end: End; error?: string };
  try {
    const body = request(chat, branch(chat, parent));
    const parts = earlier?.content ? resume(body, earlier.content, control.signal) : ask(body, control.signal);
    for await (const delta of parts) take(delta);
    // A stream without a reason for its end was cut somewhere on the way.
    ended = { end: finish === undefined ? "lost" : finish === "length" ? "length" : "complete" };
  } catch (error) {
    ended = endOf(error);
  }
  cancelAnimationFrame(frame);
  message = { ...message, ...ended };
  if (first !== undefined) {
    const figures = { ...message.figures, tokens: message.figures?.tokens ?? parts, firstToken: seconds(began, first) };
    if (message.reasoning) figures.thinking = seconds(first, thought ?? performance.now());
    message.figures = figures;
  }
  finishAnswer(chatId, message);
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
