// Live transcription: the microphone's sound goes to the server's speech model in growing windows.
import { segments as transcribe } from "./api";

/** Samples a second that models of speech want. */
const WANTED_RATE = 16_000;
/** Seconds of new sound before the window is sent again. */
const STEP = 1;
/** Seconds of a window beyond which its finished segments become final. */
const WINDOW = 10;
/** Seconds at the end of a window whose words may still change. */
const UNSURE = 2;

/** Samples in -1..1 as a WAV file of 16 bits. */
export function wav(samples: Float32Array, rate: number): Blob {
  const bytes = new DataView(new ArrayBuffer(44 + samples.length * 2));
  const text = (at: number, word: string) => [...word].forEach((letter, i) => bytes.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  bytes.setUint32(4, 36 + samples.length * 2, true);
  text(8, "WAVEfmt ");
  bytes.setUint32(16, 16, true);
  bytes.setUint16(20, 1, true);
  bytes.setUint16(22, 1, true);
  bytes.setUint32(24, rate, true);
  bytes.setUint32(28, rate * 2, true);
  bytes.setUint16(32, 2, true);
  bytes.setUint16(34, 16, true);
  text(36, "data");
  bytes.setUint32(40, samples.length * 2, true);
  samples.forEach((sample, i) => bytes.setInt16(44 + i * 2, Math.max(-1, Math.min(1, sample)) * 0x7fff, true));
  return new Blob([bytes.buffer as ArrayBuffer], { type: "audio/wav" });
}

/** A recording in progress. */
export interface Recorder {
  /** Ends the recording and gives the whole text. */
  stop(): Promise<string>;
  cancel(): void;
}

interface Heard {
  onText(text: string): void;
  /** The loudness of the last block, from 0 to 1. */
  onLevel(level: number): void;
  onError(error: unknown): void;
}

/** Records from the microphone. Throws if the browser or the user refuses it. */
export async function record(model: string, heard: Heard): Promise<Recorder> {
  // Models of speech are trained on noisy sound, and filters take parts of words away.
  const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false };
  const stream = await navigator.mediaDevices.getUserMedia({ audio });
  const release = () => stream.getTracks().forEach((track) => track.stop());
  const { context, source } = await listenTo(stream).catch((error) => {
    release();
    throw error;
  });
  const tap = new AudioWorkletNode(context, "tap", { numberOfOutputs: 0 });
  source.connect(tap);
  const transcript = new Transcript(model, context.sampleRate, heard);
  tap.port.onmessage = ({ data }: MessageEvent<Float32Array>) => {
    transcript.add(data);
    heard.onLevel(Math.min(1, Math.sqrt(data.reduce((sum, x) => sum + x * x, 0) / data.length) * 8));
  };
  const close = () => {
    tap.port.onmessage = null;
    source.disconnect();
    release();
    void context.close();
  };
  return {
    stop: () => {
      close();
      return transcript.finish();
    },
    cancel: () => {
      close();
      transcript.cancel();
    },
  };
}

/** A context with the sound. Some browsers refuse a rate other than the microphone's, and the server takes any. */
async function listenTo(stream: MediaStream): Promise<{ context: AudioContext; source: MediaStreamAudioSourceNode }> {
  const connect = (options: AudioContextOptions) => {
    const context = new AudioContext(options);
    try {
      return { context, source: context.createMediaStreamSource(stream) };
    } catch (error) {
      void context.close();
      throw error;
    }
  };
  let made: ReturnType<typeof connect>;
  try {
    made = connect({ sampleRate: WANTED_RATE });
  } catch {
    made = connect({});
  }
  await made.context.audioWorklet.addModule("worklet.js");
  return made;
}

/** The text of a recording: a final part, and the text of the sound after it. */
class Transcript {
  private sound: Float32Array[] = [];
  private samples = 0;
  private sent = 0;
  private final = "";
  private tail = "";
  private isOver = false;
  private work: Promise<void> | undefined;
  private control = new AbortController();

  constructor(
    private readonly model: string,
    private readonly rate: number,
    private readonly heard: Heard,
  ) {}

  add(block: Float32Array): void {
    this.sound.push(block);
    this.samples += block.length;
    if (!this.work && this.samples - this.sent >= STEP * this.rate) this.listen();
  }

  private listen(): void {
    this.sent = this.samples;
    this.work = this.read()
      .catch((error) => {
        if (!this.control.signal.aborted) this.heard.onError(error);
      })
      .finally(() => (this.work = undefined));
  }

  private async read(): Promise<void> {
    const all = new Float32Array(this.samples);
    let at = 0;
    for (const block of this.sound) {
      all.set(block, at);
      at += block.length;
    }
    const length = all.length / this.rate;
    const found = await transcribe(this.model, wav(all, this.rate), this.control.signal);
    const isFinal = (end: number) => length > WINDOW && end < length - UNSURE;
    const done = found.filter(({ end }) => isFinal(end));
    const cut = done.at(-1)?.end ?? 0;
    this.final += done.map(({ text }) => text).join("");
    this.tail = found.slice(done.length).map(({ text }) => text).join("");
    if (cut > 0) this.drop(Math.round(cut * this.rate), all);
    if (!this.isOver) this.heard.onText(this.text());
  }

  /** Drops the sound of the final text; sound that came meanwhile stays. */
  private drop(count: number, all: Float32Array): void {
    let read = 0;
    const later = this.sound.filter((block) => (read += block.length) > all.length);
    this.sound = [all.slice(count), ...later];
    this.samples -= count;
    this.sent -= count;
  }

  private text(): string {
    return (this.final + this.tail).trim();
  }

  async finish(): Promise<string> {
    this.isOver = true;
    // One last reading of the whole window replaces the one under way.
    this.control.abort();
    await this.work;
    this.control = new AbortController();
    if (this.samples > 0) await this.read();
    return this.text();
  }

  cancel(): void {
    this.control.abort();
  }
}
