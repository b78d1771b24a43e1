// A message with its actions and figures.
import { Check, ChevronLeft, ChevronRight, Copy, CornerDownRight, FileText, GitBranch, Mic, Pencil, RefreshCw, Trash2, TriangleAlert } from "lucide";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { continueAnswer, edit, fork, regenerate, removeMessage, revise, select } from "./chat";
import { copy } from "./enhance";
import { Flame, Icon } from "./icons";
import { count, IconButton } from "./parts";
import { current, running, type Running } from "./state";
import { Markdown } from "./text";
import { versions } from "./tree";
import type { Attachment, Figures, Message } from "./types";

function CopyButton({ text }: { text: string }) {
  const [isDone, setDone] = useState(false);
  const act = async () => {
    if (!(await copy(text))) return;
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return <IconButton icon={isDone ? Check : Copy} size={16} label="Copy message" onClick={act} />;
}

/** Arrows between the versions of a message. */
function Versions({ message }: { message: Message }) {
  const all = versions(current.value!, message);
  if (all.length < 2) return null;
  const at = all.findIndex(({ id }) => id === message.id);
  const go = (step: number) => select(all[at + step]!.id);
  return (
    <span class="versions" role="group" aria-label="Versions of this message">
      <IconButton icon={ChevronLeft} size={16} label="Previous version" disabled={at === 0} onClick={() => go(-1)} />
      <span>{at + 1} / {all.length}</span>
      <IconButton icon={ChevronRight} size={16} label="Next version" disabled={at === all.length - 1} onClick={() => go(1)} />
    </span>
  );
}

function Files({ of }: { of: Attachment[] }) {
  return (
    <ul class="files">
      {of.map(({ name, kind, text }) => (
        <li key={name}>
          <details class="file">
            <summary><Icon of={kind === "audio" ? Mic : FileText} size={15} />{name}</summary>
            <pre tabIndex={0}>{text}</pre>
          </details>
        </li>
      ))}
    </ul>
  );
}

interface EditorProps {
  message: Message;
  verb: string;
  onText: (text: string) => void;
  onDone: () => void;
}

function Editor({ message, verb, onText, onDone }: EditorProps) {
  const ref = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    ref.current?.focus();
    ref.current?.setSelectionRange(-1, -1);
  }, []);
  const finish = () => {
    const text = ref.current!.value.trim();
    if (text) onText(text);
    onDone();
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      finish();
    }
    if (event.key === "Escape") {
      event.stopPropagation();
      onDone();
    }
  };
  return (
    <div class="editor">
      <textarea ref={ref} aria-label="Edit message" rows={Math.min(12, message.content.split("\n").length + 1)} defaultValue={message.content} onKeyDown={press} />
      <div class="buttons">
        <button type="button" class="button" onClick={onDone}>Cancel</button>
        <button type="button" class="button primary" onClick={finish}>{verb}</button>
      </div>
    </div>
  );
}

function UserMessage({ message }: { message: Message }) {
  const [isEditing, setEditing] = useState(false);
  const isBusy = !!running.value[current.value!.id];
  return (
    <article class="message user" aria-label="You">
      {isEditing ? (
        <Editor message={message} verb="Send" onText={(text) => edit(message, text)} onDone={() => setEditing(false)} />
      ) : (
        <>
          {message.attachments && <Files of={message.attachments} />}
          {message.content && <div class="bubble">{message.content}</div>}
          <footer>
            <Versions message={message} />
            <span class="actions">
              <IconButton icon={Pencil} size={16} label="Edit message" disabled={isBusy} onClick={() => setEditing(true)} />
              <CopyButton text={message.content} />
            </span>
          </footer>
        </>
      )}
    </article>
  );
}

function Thoughts({ message, live }: { message: Message; live?: Running }) {
  if (!message.reasoning) return null;
  const isThinking = live && !message.content;
  const time = message.figures?.thinking;
  return (
    <details class="thoughts">
      <summary class={isThinking ? "shimmer" : ""}>{isThinking ? "Thinking…" : time === undefined ? "Thoughts" : `Thought for ${time.toFixed(1)} s`}</summary>
      <div class="thoughts-text">{message.reasoning}</div>
    </details>
  );
}

/** Why an answer is not whole. */
function Ending({ message }: { message: Message }) {
  const { end, error } = message;
  if (!end || end === "complete") return null;
  const text = {
    length: "Cut at the limit on tokens. The answer is incomplete.",
    stopped: "Stopped.",
    lost: "The connection to the server was lost. The answer is incomplete.",
    failed: error ?? "The answer failed.",
  }[end];
  const isBroken = end === "lost" || end === "failed";
  const canGoOn = message.content && !message.reasoning && end !== "failed";
  return (
    <div class={`ending ${isBroken ? "broken" : ""}`}>
      {isBroken && <Icon of={TriangleAlert} size={16} />}
      <span>{text}</span>
      {canGoOn && <button type="button" class="button small" onClick={() => continueAnswer(message)}><Icon of={CornerDownRight} size={14} />Continue</button>}
      {isBroken && <button type="button" class="button small" onClick={() => regenerate(message)}>Try again</button>}
    </div>
  );
}

function figuresText({ tokens, perSecond, firstToken, cached }: Figures): string {
  const parts = [`${count(tokens)} ${tokens === 1 ? "token" : "tokens"}`];
  if (perSecond) parts.push(`${perSecond.toFixed(1)} tokens/s`);
  if (firstToken !== undefined) parts.push(`first after ${firstToken.toFixed(2)} s`);
  if (cached) parts.push(`${count(cached)} from the cache`);
  return parts.join(" · ");
}

/** Speed so far, by the parts that arrived. */
function LiveFigures({ live }: { live: Running }) {
  if (live.firstPart === undefined) return <span class="figures">Waiting for the first token</span>;
  const seconds = (performance.now() - live.firstPart) / 1000;
  return <span class="figures">about {count(live.parts)} tokens{seconds > 0.5 && ` · ${(live.parts / seconds).toFixed(1)} tokens/s`}</span>;
}

function ModelMessage({ message, live }: { message: Message; live?: Running }) {
  const [isEditing, setEditing] = useState(false);
  const isBusy = !!running.value[current.value!.id];
  return (
    <article class="message assistant" aria-label={message.model ?? "Model"} aria-busy={!!live}>
      <div class="author"><Flame size={20} /><span>{message.model ?? "Model"}</span></div>
      <Thoughts message={message} live={live} />
      {live && !message.content && !message.reasoning && <div class="dots" aria-hidden="true"><i /><i /><i /></div>}
      {isEditing ? <Editor message={message} verb="Save" onText={(text) => revise(message, text)} onDone={() => setEditing(false)} /> : <Markdown text={message.content} />}
      <Ending message={message} />
      <footer>
        {live ? (
          <LiveFigures live={live} />
        ) : (
          <>
            <Versions message={message} />
            <span class="actions">
              <CopyButton text={message.content} />
              <IconButton icon={Pencil} size={16} label="Edit answer" disabled={isBusy} onClick={() => setEditing(true)} />
              <IconButton icon={RefreshCw} size={16} label="Answer again" disabled={isBusy} onClick={() => regenerate(message)} />
              <IconButton icon={GitBranch} size={16} label="Continue in a new chat" onClick={() => fork(message.id)} />
              <IconButton icon={Trash2} size={16} label="Delete message" onClick={() => removeMessage(message.id)} />
            </span>
            {message.figures && <span class="figures">{figuresText(message.figures)}</span>}
          </>
        )}
      </footer>
    </article>
  );
}

export function MessageView({ message }: { message: Message }) {
  const live = running.value[current.value!.id];
  const isLive = live?.messageId === message.id;
  return message.role === "user" ? <UserMessage message={message} /> : <ModelMessage message={message} live={isLive ? live : undefined} />;
}
