// An answer while it comes: its text, and the times of its parts.
import { Refused, type Delta } from "./api";
import type { End, Figures, Message } from "./types";

const seconds = (from: number, to: number) => (to - from) / 1000;

/** Why an answer ended, from the error that ended it. */
export function endOf(error: unknown): { end: End; error?: string } {
  if (error instanceof DOMException && error.name === "AbortError") return { end: "stopped" };
  if (error instanceof Refused) return { end: "failed", error: error.message };
  // What fetch throws when the connection breaks.
  if (error instanceof TypeError) return { end: "lost" };
  return { end: "failed", error: error instanceof Error ? error.message : String(error) };
}

export class Growing {
  /** Parts that have arrived, about one a token. */
  parts = 0;
  /** When the request was sent, and when the first part came, in milliseconds. */
  readonly began = performance.now();
  first: number | undefined;
  private answered: number | undefined;
  private finish: string | undefined;
  private told: Figures | undefined;
  private readonly tokensBefore: number;

  /** Begins with an empty message, or with one that goes on. */
  constructor(public message: Message) {
    this.tokensBefore = message.figures?.tokens ?? 0;
  }

  take({ content, reasoning, finish, figures }: Delta): void {
    if (content || reasoning) {
      this.parts += 1;
      this.first ??= performance.now();
      if (content) this.answered ??= performance.now();
    }
    this.finish = finish ?? this.finish;
    if (figures) this.told = { ...this.told, ...figures, tokens: figures.tokens || (this.told?.tokens ?? 0) };
    this.message = { ...this.message, content: this.message.content + content };
    if (reasoning) this.message.reasoning = (this.message.reasoning ?? "") + reasoning;
  }

  /** Why the stream ended. One without a reason for its end was cut somewhere on the way. */
  end(): { end: End } {
    if (this.finish === undefined) return { end: "lost" };
    return { end: this.finish === "length" ? "length" : "complete" };
  }

  /** The message with its figures. */
  finished(ended: { end: End; error?: string }): Message {
    const message = { ...this.message, ...ended };
    if (this.first === undefined) return message;
    const now = performance.now();
    // A cut stream ends without the server's figures.
    const perSecond = this.told?.perSecond ?? (now - this.first > 200 ? (this.parts - 1) / seconds(this.first, now) : undefined);
    const tokens = this.tokensBefore + (this.told?.tokens || this.parts);
    const figures: Figures = { ...this.told, tokens, perSecond, firstToken: seconds(this.began, this.first) };
    if (message.reasoning) figures.thinking = seconds(this.first, this.answered ?? now);
    return { ...message, figures };
  }
}
