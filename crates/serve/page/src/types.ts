// The data of the page: chats, their messages, and the server's models.

/** Why an answer ended. `lost` is a broken connection, `length` a limit on tokens. */
export type End = "complete" | "length" | "stopped" | "lost" | "failed";

/** A file that goes with a message, as text. */
export interface Attachment {
  name: string;
  kind: "text" | "audio";
  text: string;
}

/** Measurements of an answer: seconds, and tokens a second. */
export interface Figures {
  tokens: number;
  perSecond?: number;
  firstToken?: number;
  thinking?: number;
  cached?: number;
  /** Tokens of the context after this answer. */
  context?: number;
}

export interface Message {
  id: string;
  parent: string | null;
  role: "user" | "assistant";
  content: string;
  created: number;
  reasoning?: string;
  attachments?: Attachment[];
  model?: string;
  end?: End;
  error?: string;
  figures?: Figures;
}

/** Options of a request; an absent one is left to the server. */
export interface Sampling {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  repetition_penalty?: number;
  max_tokens?: number;
  seed?: number;
}

export interface ChatOptions extends Sampling {
  system?: string;
  think?: "on" | "off";
  schema?: string;
}

/** A tree of messages. `leaf` is the last message of the branch that is shown. */
export interface Chat {
  id: string;
  title: string;
  created: number;
  updated: number;
  messages: Record<string, Message>;
  leaf: string | null;
  options: ChatOptions;
}

/** An entry of `/v1/models`. */
export interface Model {
  id: string;
  status?: { value?: string };
  capabilities?: { chat?: boolean; completion?: boolean; transcription?: boolean; embedding?: boolean };
  context_length?: number | null;
  size?: number;
}
