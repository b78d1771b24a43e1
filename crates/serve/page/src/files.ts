// Files that go with a message: text is read here, sound is transcribed by the server.
import { transcribe } from "./api";
import { speechModel } from "./state";
import type { Attachment } from "./types";

/** Largest text that becomes part of a message, in bytes. */
const LARGEST_TEXT = 1 << 20;

const SOUND = /\.(wav|mp3|m4a|mp4|flac|ogg|oga|opus|webm|aac|aif|aiff|caf)$/i;

export const isSound = (file: File): boolean => file.type.startsWith("audio/") || SOUND.test(file.name);

/** A file as text; `onText` gets the transcript so far. Throws an error whose message is for the user. */
export async function readFile(file: File, onText: (text: string) => void, signal: AbortSignal): Promise<Attachment> {
  if (isSound(file)) {
    if (!speechModel.value) throw new Error(`${file.name}: this server has no speech model to transcribe it.`);
    return { name: file.name, kind: "audio", text: (await transcribe(speechModel.value, file, onText, signal)).trim() };
  }
  if (file.type.startsWith("image/")) throw new Error(`${file.name}: the models of this server read text, not images.`);
  if (file.size > LARGEST_TEXT) throw new Error(`${file.name} is larger than 1 MiB.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return { name: file.name, kind: "text", text: text.replaceAll("\r\n", "\n") };
  } catch {
    // The bytes are not UTF-8.
  }
  throw new Error(`${file.name} is not a text file.`);
}
