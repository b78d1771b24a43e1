// Requests to the server. Every one goes to the server that sent this page.
import { EventSourceParserStream } from "eventsource-parser/stream";
import type { Figures, Model } from "./types";

const KEY = "flambeau-key";

/** The API key. A key is a secret, so it stays in this tab. */
export const apiKey = {
  get: (): string => sessionStorage.getItem(KEY) ?? "",
  set: (value: string): void => sessionStorage.setItem(KEY, value),
};

/** The server refused a request. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const key = apiKey.get();
  const response = await fetch(path, { ...init, headers: { ...init.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) } });
  if (response.ok) return response;
  const told = await response.json().catch(() => undefined);
  throw new Refused(response.status, told?.error?.message ?? `the server answered with status ${response.status}`);
}

const post = (path: string, body: unknown, signal?: AbortSignal) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

export async function listModels(): Promise<Model[]> {
  return (await (await ask("v1/models")).json()).data;
}

/** Sampling of a loaded model where a request does not say. */
export interface Defaults {
  temperature?: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
  repeat_penalty?: number;
}

export async function defaultsOf(model: string): Promise<{ defaults: Defaults; template: string }> {
  const props = await (await ask(`props?model=${encodeURIComponent(model)}`)).json();
  return { defaults: props.default_generation_settings?.params ?? {}, template: props.chat_template ?? "" };
}

/** A part of an answer. `finish` is the reason that the server gives for its end. */
export interface Delta {
  content: string;
  reasoning: string;
  finish?: string;
  figures?: Figures;
}

interface Chunk {
  error?: { message: string };
  choices?: {
    delta?: { content?: string | null; reasoning_content?: string | null };
    text?: string;
    finish_reason?: string | null;
    timings?: Timings;
  }[];
  timings?: Timings;
  usage?: { total_tokens: number } | null;
}

interface Timings {
  predicted_n: number;
  predicted_per_second?: number | null;
  cache_n?: number;
}

function read(chunk: Chunk): Delta {
  const choice = chunk.choices?.[0];
  const timings = choice?.timings ?? chunk.timings;
  const delta: Delta = { content: choice?.delta?.content ?? choice?.text ?? "", reasoning: choice?.delta?.reasoning_content ?? "" };
  if (choice?.finish_reason) delta.finish = choice.finish_reason;
  if (timings) delta.figures = { tokens: timings.predicted_n, perSecond: timings.predicted_per_second ?? undefined, cached: timings.cache_n };
  if (chunk.usage) delta.figures = { ...(delta.figures ?? { tokens: 0 }), context: chunk.usage.total_tokens };
  return delta;
}

async function* events(response: Response): AsyncGenerator<Record<string, unknown>> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done || value.data === "[DONE]") return;
    yield JSON.parse(value.data);
  }
}

/** Streams the answer to a conversation. The stream may end without a `finish`. */
export async function* chat(body: Record<string, unknown>, signal: AbortSignal): AsyncGenerator<Delta> {
  yield* stream("v1/chat/completions", body, signal);
}

/** Continues an answer from its present text, which the model reads as its own. */
export async function* resume(body: Record<string, unknown>, text: string, signal: AbortSignal): AsyncGenerator<Delta> {
  const { messages, model, chat_template_kwargs, ...rest } = body;
  const { prompt } = await (await post("apply-template", { messages, model, chat_template_kwargs }, signal)).json();
  const { tokens } = await (await post("tokenize", { content: prompt + text, model }, signal)).json();
  yield* stream("v1/completions", { ...rest, model, prompt: tokens, max_tokens: body.max_tokens ?? 4096 }, signal);
}

async function* stream(path: string, body: Record<string, unknown>, signal: AbortSignal): AsyncGenerator<Delta> {
  const response = await post(path, { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  for await (const event of events(response)) {
    const chunk = event as Chunk;
    if (chunk.error) throw new Refused(500, chunk.error.message);
    yield read(chunk);
  }
}

export interface Segment {
  start: number;
  end: number;
  text: string;
}

function recording(model: string, sound: Blob, name: string, more: Record<string, string>): FormData {
  const form = new FormData();
  form.append("model", model);
  for (const [field, value] of Object.entries(more)) form.append(field, value);
  form.append("file", sound, name);
  return form;
}

const TRANSCRIBE = "v1/audio/transcriptions";

/** The segments of a recording, with times in seconds. */
export async function segments(model: string, sound: Blob, signal?: AbortSignal): Promise<Segment[]> {
  const form = recording(model, sound, "speech.wav", { response_format: "verbose_json" });
  return (await (await ask(TRANSCRIBE, { method: "POST", body: form, signal })).json()).segments;
}

/** Transcribes a file; `onText` gets the text so far. */
export async function transcribe(model: string, file: File, onText: (text: string) => void, signal?: AbortSignal): Promise<string> {
  const response = await ask(TRANSCRIBE, { method: "POST", body: recording(model, file, file.name, { stream: "true" }), signal });
  let text = "";
  for await (const event of events(response)) {
    const { type, delta, text: whole, error } = event as { type?: string; delta?: string; text?: string; error?: { message: string } };
    if (error) throw new Refused(500, error.message);
    if (type === "transcript.text.done") return whole ?? text;
    text += delta ?? "";
    onText(text);
  }
  throw new TypeError("the connection ended before the transcript did");
}
