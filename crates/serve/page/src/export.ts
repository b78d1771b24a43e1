// A chat as a file.
import { asRead } from "./chat";
import { branch } from "./tree";
import type { Chat } from "./types";

function markdown(chat: Chat): string {
  const parts = branch(chat).map((message) => `## ${message.role === "user" ? "You" : (message.model ?? "Model")}\n\n${asRead(message)}`);
  return [`# ${chat.title}`, ...(chat.options.system ? [`> ${chat.options.system.replaceAll("\n", "\n> ")}`] : []), ...parts].join("\n\n") + "\n";
}

/** The shown branch in OpenAI's form, as `flambeau chat` loads it. */
function json(chat: Chat): string {
  const system = chat.options.system ? [{ role: "system", content: chat.options.system }] : [];
  const messages = branch(chat).map((message) => ({
    role: message.role,
    content: asRead(message),
    ...(message.reasoning ? { reasoning_content: message.reasoning } : {}),
  }));
  return JSON.stringify({ messages: [...system, ...messages] }, null, 2) + "\n";
}

export function download(chat: Chat, form: "md" | "json"): void {
  const [text, type] = form === "md" ? [markdown(chat), "text/markdown"] : [json(chat), "application/json"];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = `${chat.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "chat"}.${form}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
