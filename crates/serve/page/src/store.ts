// Chats and preferences in this browser: IndexedDB for chats, localStorage for preferences.
import { openDB, type IDBPDatabase } from "idb";
import { newId, titleOf } from "./tree";
import type { Chat, Message } from "./types";

const CHATS = "chats";
let database: Promise<IDBPDatabase> | undefined;

function open(): Promise<IDBPDatabase> {
  database ??= openDB("flambeau", 1, {
    upgrade: (made) => {
      made.createObjectStore(CHATS, { keyPath: "id" });
    },
  });
  return database;
}

/** All chats, newest first. */
export async function loadChats(): Promise<Chat[]> {
  const chats: Chat[] = await (await open()).getAll(CHATS);
  const earlier = fromLocalStorage();
  if (earlier.length) {
    await Promise.all(earlier.map(saveChat));
    localStorage.removeItem(EARLIER);
  }
  return [...chats.map(mark), ...earlier].sort((a, b) => b.updated - a.updated);
}

/** The chat, with answers that were under way when the page was closed marked as such. */
function mark(chat: Chat): Chat {
  const messages = Object.values(chat.messages).map((message): [string, Message] => {
    const isCut = message.role === "assistant" && !message.end;
    return [message.id, isCut ? { ...message, end: "lost" } : message];
  });
  return { ...chat, messages: Object.fromEntries(messages) };
}

export async function saveChat(chat: Chat): Promise<void> {
  await (await open()).put(CHATS, chat);
}

export async function deleteChat(id: string): Promise<void> {
  await (await open()).delete(CHATS, id);
}

/** The key of earlier versions of this page. */
const EARLIER = "flambeau";

interface EarlierChat {
  title: string;
  messages: { role: "user" | "assistant"; content: string; reasoning?: string }[];
}

/** Chats that an earlier version of this page kept. */
function fromLocalStorage(): Chat[] {
  try {
    const { chats = [] } = JSON.parse(localStorage.getItem(EARLIER) ?? "{}") as { chats?: EarlierChat[] };
    return chats.filter((chat) => chat.messages.length).map(convert);
  } catch {
    return [];
  }
}

function convert(chat: EarlierChat): Chat {
  const messages: Record<string, Message> = {};
  let parent: string | null = null;
  for (const [at, { role, content, reasoning }] of chat.messages.entries()) {
    const id = newId();
    messages[id] = { id, parent, role, content, reasoning, created: at, end: "complete" };
    parent = id;
  }
  const now = Date.now();
  return { id: newId(), title: chat.title || titleOf(chat.messages[0]!.content), created: now, updated: now, messages, leaf: parent, options: {} };
}

/** A preference of this browser; `undefined` if there is none. */
export function preference<T>(name: string): T | undefined {
  try {
    return JSON.parse(localStorage.getItem(`flambeau-${name}`) ?? "null") ?? undefined;
  } catch {
    return undefined;
  }
}

export function setPreference(name: string, value: unknown): void {
  try {
    localStorage.setItem(`flambeau-${name}`, JSON.stringify(value));
  } catch {
    // Without room the preference lasts as long as the page.
  }
}
