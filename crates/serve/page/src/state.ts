// The state of the page, as signals, and the changes to it.
import { computed, signal } from "@preact/signals";
import { apiKey, defaultsOf, listModels, Refused, type Defaults } from "./api";
import { deleteChat, loadChats, preference, saveChat, setPreference } from "./store";
import { branch, newId } from "./tree";
import type { Chat, ChatOptions, Model } from "./types";

export type Scheme = "system" | "light" | "dark";

export const chats = signal<Chat[]>([]);
export const currentId = signal<string | null>(null);
/** Options of the next new chat: the last ones that were set. */
export const nextOptions = signal<ChatOptions>(preference("options") ?? {});
export const models = signal<Model[]>([]);
export const chosenModel = signal<string>(preference("model") ?? "");
export const defaults = signal<Defaults>({});
export const template = signal("");
/** Why the server cannot be used; empty if it can. */
export const trouble = signal("");
export const needsKey = signal(false);
export const scheme = signal<Scheme>(preference("scheme") ?? "system");
export const sidebarOpen = signal(preference<boolean>("sidebar") ?? innerWidth > 900);
export const panelOpen = signal(false);
export const searchText = signal("");
/** The last thing that happened, for screen readers. */
export const announcement = signal("");
export const toast = signal<{ text: string; undo?: () => void } | null>(null);
export const shortcutsOpen = signal(false);
/** Answers that are being written, by chat. */
export const running = signal<Record<string, Running>>({});

export interface Running {
  control: AbortController;
  messageId: string;
  began: number;
  /** Parts that have arrived, about one a token. */
  parts: number;
  firstPart?: number;
}

export const current = computed(() => chats.value.find(({ id }) => id === currentId.value));
export const messages = computed(() => (current.value ? branch(current.value) : []));
export const options = computed(() => current.value?.options ?? nextOptions.value);
export const chatModels = computed(() => models.value.filter(({ capabilities: can }) => can?.chat ?? can?.completion));
export const speechModel = computed(() => models.value.find(({ capabilities: can }) => can?.transcription)?.id);
export const model = computed(() => chatModels.value.find(({ id }) => id === chosenModel.value) ?? chatModels.value[0]);

export function announce(text: string): void {
  announcement.value = text;
}

export function show(text: string, undo?: () => void): void {
  toast.value = { text, undo };
  announce(text);
  const shown = toast.value;
  setTimeout(() => {
    if (toast.value === shown) toast.value = null;
  }, 6000);
}

const failedToSave = () => show("This browser has no room to keep the chat.");

/** Replaces a chat, or adds it; `keep` writes it to the browser's store. */
export function update(chat: Chat, keep = true): void {
  const isNew = !chats.value.some(({ id }) => id === chat.id);
  chats.value = isNew ? [chat, ...chats.value] : chats.value.map((other) => (other.id === chat.id ? chat : other));
  if (keep) saveChat(chat).catch(failedToSave);
}

export function find(id: string): Chat | undefined {
  return chats.value.find((chat) => chat.id === id);
}

export function createChat(title: string): Chat {
  const now = Date.now();
  const chat: Chat = { id: newId(), title, created: now, updated: now, messages: {}, leaf: null, options: nextOptions.value };
  update(chat);
  open(chat.id);
  return chat;
}

export function open(id: string | null): void {
  currentId.value = id;
  const hash = id ? `#${id}` : "";
  if (location.hash !== hash) history.replaceState(null, "", hash || location.pathname);
  document.title = current.value ? `${current.value.title} · Flambeau` : "Flambeau";
  if (innerWidth <= 900) sidebarOpen.value = false;
}

export function rename(id: string, title: string): void {
  const chat = find(id);
  if (chat && title.trim()) update({ ...chat, title: title.trim() });
  if (id === currentId.value) document.title = `${title} · Flambeau`;
}

export function remove(id: string): void {
  const chat = find(id);
  if (!chat) return;
  running.value[id]?.control.abort();
  chats.value = chats.value.filter((other) => other !== chat);
  if (currentId.value === id) open(null);
  deleteChat(id).catch(() => show("The chat could not be deleted."));
  show(`Deleted “${chat.title}”.`, () => {
    update(chat);
    chats.value = [...chats.value].sort((a, b) => b.updated - a.updated);
    open(id);
  });
}

export function setOptions(change: Partial<ChatOptions>): void {
  const changed = Object.fromEntries(Object.entries({ ...options.value, ...change }).filter(([, value]) => value !== undefined && value !== ""));
  nextOptions.value = changed;
  setPreference("options", changed);
  if (current.value) update({ ...current.value, options: changed });
}

export function choose(id: string): void {
  chosenModel.value = id;
  setPreference("model", id);
  loadDefaults();
}

export function setScheme(value: Scheme): void {
  scheme.value = value;
  setPreference("scheme", value);
  document.documentElement.dataset.scheme = value;
}

export function toggleSidebar(): void {
  sidebarOpen.value = !sidebarOpen.value;
  setPreference("sidebar", sidebarOpen.value);
}

/** Defaults of the chosen model. One that is not loaded is not asked, because asking loads it. */
function loadDefaults(): void {
  const wanted = model.value;
  defaults.value = {};
  template.value = "";
  if (!wanted || (wanted.status?.value ?? "loaded") !== "loaded") return;
  const take = (found: Awaited<ReturnType<typeof defaultsOf>>) => {
    if (model.value?.id === wanted.id) [defaults.value, template.value] = [found.defaults, found.template];
  };
  defaultsOf(wanted.id).then(take, () => undefined);
}

/** Milliseconds until a server that cannot be reached is asked again. */
const RETRY = 4000;
let retry = 0;

/** Asks the server for its models. */
export async function refreshModels(): Promise<void> {
  clearTimeout(retry);
  try {
    models.value = await listModels();
    trouble.value = chatModels.value.length ? "" : "This server has no model that chats.";
    needsKey.value = false;
    if (!Object.keys(defaults.value).length) loadDefaults();
  } catch (error) {
    needsKey.value = error instanceof Refused && error.status === 401;
    if (needsKey.value) panelOpen.value = true;
    if (!needsKey.value) retry = setTimeout(() => void refreshModels(), RETRY);
    trouble.value = needsKey.value ? "The server asks for an API key." : error instanceof Refused ? error.message : "The server cannot be reached.";
  }
}

export function setKey(key: string): void {
  apiKey.set(key);
  void refreshModels();
}

export async function begin(): Promise<void> {
  setScheme(scheme.value);
  void refreshModels();
  chats.value = await loadChats().catch(() => {
    show("This browser does not let the page keep chats.");
    return [];
  });
  const wanted = location.hash.slice(1);
  if (find(wanted)) open(wanted);
}
