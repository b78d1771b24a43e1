// Branches of a chat. A message has a parent; messages with the same parent are versions of each other.
import type { Chat, Message } from "./types";

export const newId = (): string => {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return btoa(String.fromCharCode(...bytes)).replaceAll("/", "_").replaceAll("+", "-");
};

/** The messages of the shown branch, first to last. */
export function branch(chat: Chat, leaf: string | null = chat.leaf): Message[] {
  const path: Message[] = [];
  for (let message = leaf ? chat.messages[leaf] : undefined; message; ) {
    path.push(message);
    message = message.parent ? chat.messages[message.parent] : undefined;
  }
  return path.reverse();
}

/** Versions of a message, oldest first. */
export function versions(chat: Chat, message: Message): Message[] {
  const all = Object.values(chat.messages).filter((other) => other.parent === message.parent && other.role === message.role);
  return all.sort((a, b) => a.created - b.created);
}

/** The newest leaf below a message. */
export function newestLeaf(chat: Chat, id: string): string {
  for (let leaf = id; ; ) {
    const children = Object.values(chat.messages).filter((message) => message.parent === leaf);
    if (!children.length) return leaf;
    leaf = children.reduce((a, b) => (b.created >= a.created ? b : a)).id;
  }
}

/** The chat with a message added or replaced, which becomes the leaf if it is new. */
export function put(chat: Chat, message: Message): Chat {
  const isNew = !chat.messages[message.id];
  const messages = { ...chat.messages, [message.id]: message };
  return { ...chat, messages, leaf: isNew ? message.id : chat.leaf };
}

/** The chat without a message and everything below it. */
export function prune(chat: Chat, id: string): Chat {
  const gone = new Set([id]);
  for (let before = 0; before !== gone.size; ) {
    before = gone.size;
    for (const message of Object.values(chat.messages)) if (message.parent && gone.has(message.parent)) gone.add(message.id);
  }
  const removed = chat.messages[id]!;
  const messages = Object.fromEntries(Object.entries(chat.messages).filter(([key]) => !gone.has(key)));
  const rest = { ...chat, messages };
  if (!chat.leaf || !gone.has(chat.leaf)) return rest;
  const sibling = versions(rest, removed).at(-1);
  return { ...rest, leaf: sibling ? newestLeaf(rest, sibling.id) : removed.parent };
}

/** A title for a chat that begins with this text. */
export function titleOf(text: string): string {
  const line = text.trim().split("\n")[0]!.replace(/\s+/g, " ");
  return line.length > 48 ? `${line.slice(0, 47).trimEnd()}…` : line || "New chat";
}
