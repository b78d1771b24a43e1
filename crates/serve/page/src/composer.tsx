// Where messages are written: text, files, and speech.
import { ArrowUp, FileText, LoaderCircle, Mic, Paperclip, Square, X } from "lucide";
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { send, stop } from "./chat";
import { readFile } from "./files";
import { Icon } from "./icons";
import { count, IconButton } from "./parts";
import { record, type Recorder } from "./recorder";
import { announce, current, messages, model, running, show, speechModel, trouble } from "./state";
import type { Attachment } from "./types";

export const draft = signal("");

/** A file of the next message; one without `done` is still read. */
interface Pending {
  id: number;
  name: string;
  soFar: string;
  done?: Attachment;
  control: AbortController;
}

const pending = signal<Pending[]>([]);
let lastId = 0;

const change = (id: number, part: Partial<Pending>) => {
  pending.value = pending.value.map((file) => (file.id === id ? { ...file, ...part } : file));
};

const drop = (id: number) => {
  pending.value.find((file) => file.id === id)?.control.abort();
  pending.value = pending.value.filter((file) => file.id !== id);
};

/** Adds files to the next message. */
export function attach(files: Iterable<File>): void {
  for (const file of files) {
    const id = ++lastId;
    const control = new AbortController();
    pending.value = [...pending.value, { id, name: file.name, soFar: "", control }];
    const read = readFile(file, (soFar) => change(id, { soFar }), control.signal);
    read.then(
      (done) => {
        change(id, { done });
        announce(`${file.name} is attached.`);
      },
      (error) => {
        // The user took the file away.
        if (control.signal.aborted) return;
        drop(id);
        show(error instanceof Error ? error.message : String(error));
      },
    );
  }
}

function Files() {
  if (!pending.value.length) return null;
  return (
    <ul class="files pending" aria-label="Files of this message">
      {pending.value.map(({ id, name, done, soFar }) => (
        <li key={id} class="chip">
          <span class={done ? "" : "spin"}><Icon of={done ? (done.kind === "audio" ? Mic : FileText) : LoaderCircle} size={15} /></span>
          <span class="chip-text"><span class="chip-name">{name}</span>{soFar && <span class="chip-more">{(done?.text ?? soFar).slice(-80)}</span>}</span>
          <IconButton icon={X} size={14} label={`Remove ${name}`} onClick={() => drop(id)} />
        </li>
      ))}
    </ul>
  );
}

/** The share of the model's context that the chat takes. */
function Context() {
  const used = messages.value.findLast(({ figures }) => figures?.context)?.figures?.context;
  const most = model.value?.context_length;
  if (!used || !most) return null;
  const share = Math.min(1, used / most);
  const text = `${count(used)} of ${count(most)} tokens of the context are used`;
  return (
    <span class={`context ${share > 0.85 ? "full" : ""}`} role="img" title={text} aria-label={text}>
      <svg width="16" height="16" viewBox="0 0 20 20"><circle cx="10" cy="10" r="8" /><circle class="used" cx="10" cy="10" r="8" pathLength="100" stroke-dasharray={`${share * 100} 100`} /></svg>
      <span>{Math.round(share * 100)} %</span>
    </span>
  );
}

/** The microphone: its text goes to the end of the draft while it is spoken. */
function useSpeech(field: { current: HTMLTextAreaElement | null }) {
  const [state, setState] = useState<"off" | "on" | "ending">("off");
  const [level, setLevel] = useState(0);
  const recorder = useRef<Recorder | null>(null);
  const before = useRef("");
  const put = (text: string) => (draft.value = [before.current, text].filter(Boolean).join(before.current.endsWith("\n") ? "" : " "));
  const fail = (error: unknown) => show(error instanceof Error ? error.message : String(error));
  const begin = async () => {
    before.current = draft.value.trimEnd();
    try {
      recorder.current = await record(speechModel.value!, { onText: put, onLevel: setLevel, onError: fail });
      setState("on");
      announce("Recording.");
    } catch (error) {
      show(error instanceof DOMException && error.name === "NotAllowedError" ? "The browser does not let the page use the microphone." : `No microphone: ${error instanceof Error ? error.message : error}`);
    }
  };
  const end = async () => {
    setState("ending");
    await recorder.current?.stop().then(put, fail);
    setState("off");
    announce("The recording is transcribed.");
    field.current?.focus();
  };
  useEffect(() => () => recorder.current?.cancel(), []);
  return { state, level, toggle: () => void (state === "off" ? begin() : state === "on" ? end() : undefined) };
}

function MicButton({ speech }: { speech: ReturnType<typeof useSpeech> }) {
  const { state, level, toggle } = speech;
  const ref = useRef<HTMLSpanElement>(null);
  useLayoutEffect(() => ref.current?.style.setProperty("--level", String(level)), [level]);
  if (!speechModel.value) return null;
  return (
    <span class={`mic ${state}`} ref={ref}>
      <IconButton id="mic" icon={state === "ending" ? LoaderCircle : state === "on" ? Square : Mic} label={state === "on" ? "End the recording" : "Speak"} pressed={state === "on"} onClick={toggle} />
    </span>
  );
}

export function Composer() {
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const speech = useSpeech(field);
  const isRunning = !!(current.value && running.value[current.value.id]);
  const isReading = pending.value.some(({ done }) => !done);
  const isEmpty = !draft.value.trim() && !pending.value.length;
  const text = draft.value;
  // The field grows with its text, up to a third of the window.
  useLayoutEffect(() => {
    const area = field.current!;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, innerHeight / 3)}px`;
  }, [text]);
  const submit = () => {
    if (isRunning || isReading || isEmpty || !model.value || speech.state !== "off") return;
    const files = pending.value.flatMap(({ done }) => done ?? []);
    pending.value = [];
    draft.value = "";
    send(text.trim(), files);
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  };
  const paste = (event: ClipboardEvent) => {
    const files = event.clipboardData?.files;
    if (!files?.length) return;
    event.preventDefault();
    attach(files);
  };
  return (
    <form id="form" class="composer" onSubmit={(event) => (event.preventDefault(), submit())}>
      {trouble.value && <p class="trouble" role="alert">{trouble.value}</p>}
      <div class="composer-box">
        <Files />
        <textarea id="prompt" ref={field} rows={1} placeholder={model.value ? `Message ${model.value.id}` : "Message"} aria-label="Message" value={text} onInput={(event) => (draft.value = event.currentTarget.value)} onKeyDown={press} onPaste={paste} />
        <div class="composer-bar">
          <input ref={picker} id="attach" type="file" multiple hidden aria-label="Files" onChange={(event) => (attach([...(event.currentTarget.files ?? [])]), (event.currentTarget.value = ""))} />
          <IconButton icon={Paperclip} label={speechModel.value ? "Attach text files or recordings" : "Attach text files"} onClick={() => picker.current?.click()} />
          <MicButton speech={speech} />
          <span class="spacer" />
          <Context />
          {isRunning ? (
            <button type="button" id="stop" class="send" aria-label="Stop" title="Stop (Esc)" onClick={() => stop()}><Icon of={Square} size={14} /></button>
          ) : (
            <button id="send" class="send" aria-label="Send" title="Send (Enter)" disabled={isEmpty || isReading || !model.value || speech.state !== "off"}><Icon of={ArrowUp} size={18} /></button>
          )}
        </div>
      </div>
      <p class="small-print">Answers can be wrong. Chats stay in this browser.</p>
    </form>
  );
}
