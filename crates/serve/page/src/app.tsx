// The page as a whole.
import { ArrowDown, Code, FileText, Lightbulb, PenLine, Sigma } from "lucide";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { send, stop } from "./chat";
import { attach, Composer, draft } from "./composer";
import { Flame, Icon } from "./icons";
import { MessageView } from "./message";
import { Panel } from "./panel";
import { Dialog, IconButton } from "./parts";
import { newChat, Sidebar } from "./sidebar";
import { announcement, current, messages, model, panelOpen, running, shortcutsOpen, sidebarOpen, toast, toggleSidebar } from "./state";
import { TopBar } from "./topbar";

const EXAMPLES: [typeof Code, string, string][] = [
  [Lightbulb, "Explain something", "Explain how a candle flame works, for a curious ten-year-old."],
  [Code, "Write code", "Write a Python function that finds the longest common prefix of a list of strings, with tests."],
  [PenLine, "Rewrite a text", "Make this sentence shorter and friendlier: “We regret to inform you that your request cannot be processed at this time.”"],
  [Sigma, "Do some maths", "Derive the quadratic formula step by step."],
];

function Empty() {
  return (
    <div class="empty">
      <Flame size={56} />
      <h2>What shall we talk about?</h2>
      <p>{model.value ? <><strong>{model.value.id}</strong> runs on this server, and nothing leaves it.</> : "Waiting for the server’s models."}</p>
      <div class="examples">
        {EXAMPLES.map(([icon, title, text]) => (
          <button type="button" key={title} class="example" disabled={!model.value} onClick={() => send(text)}>
            <Icon of={icon} size={18} />
            <span class="example-title">{title}</span>
            <span class="example-text">{text}</span>
          </button>
        ))}
      </div>
      <p class="hint"><Icon of={FileText} size={15} />Drop files anywhere on the page to ask about them.</p>
    </div>
  );
}

/** Pixels from the end within which the view follows a growing answer. */
const NEAR = 80;

function Conversation() {
  const ref = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const [isAway, setAway] = useState(false);
  const chat = current.value;
  const last = messages.value.at(-1);
  const toEnd = () => ref.current?.scrollTo({ top: ref.current.scrollHeight });
  useLayoutEffect(() => {
    follows.current = true;
    setAway(false);
    if (last) toEnd();
  }, [chat?.id, messages.value.length]);
  useLayoutEffect(() => {
    if (last && follows.current) toEnd();
  }, [last]);
  // The end stays in sight while the field for messages grows.
  useEffect(() => {
    const watch = new ResizeObserver(() => follows.current && messages.value.length && toEnd());
    watch.observe(ref.current!);
    return () => watch.disconnect();
  }, []);
  const scroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = ref.current!;
    follows.current = scrollHeight - scrollTop - clientHeight < NEAR;
    setAway(!follows.current);
  };
  return (
    <main id="conversation">
      <div class="scroller" ref={ref} onScroll={scroll} tabIndex={0} role="region" aria-label="Conversation">
        <div id="log">{chat && messages.value.length ? messages.value.map((message) => <MessageView key={message.id} message={message} />) : <Empty />}</div>
      </div>
      {isAway && <IconButton class="to-end" icon={ArrowDown} label="To the end" onClick={() => { follows.current = true; toEnd(); }} />}
      <Composer />
    </main>
  );
}

const CONTROL = /Mac|iPad|iPhone/.test(navigator.platform) ? "⌘" : "Ctrl";

const KEYS: [string, string][] = [
  ["Enter", "Send"],
  ["Shift + Enter", "Begin a line"],
  ["Esc", "Stop the answer"],
  ["↑ in an empty message", "Edit the last message"],
  [`${CONTROL} + K`, "Search chats"],
  [`${CONTROL} + Shift + O`, "New chat"],
  [`${CONTROL} + B`, "Show or hide the chats"],
  [`${CONTROL} + ,`, "Show or hide the settings"],
  [`${CONTROL} + /`, "Show these keys"],
];

function Shortcuts() {
  if (!shortcutsOpen.value) return null;
  return (
    <Dialog title="Keys" onClose={() => (shortcutsOpen.value = false)}>
      <dl class="keys">
        {KEYS.map(([key, what]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>)}
      </dl>
    </Dialog>
  );
}

function search(): void {
  if (!sidebarOpen.value) toggleSidebar();
  requestAnimationFrame(() => document.getElementById("search")?.focus());
}

function editLast(): void {
  const buttons = document.querySelectorAll<HTMLElement>('#log .user [aria-label="Edit message"]');
  [...buttons].at(-1)?.click();
}

function press(event: KeyboardEvent): void {
  const isPrompt = event.target instanceof HTMLElement && event.target.id === "prompt";
  if (event.key === "Escape" && current.value && running.value[current.value.id]) return stop();
  if (event.key === "ArrowUp" && isPrompt && !draft.value) {
    event.preventDefault();
    return editLast();
  }
  if (!(event.ctrlKey || event.metaKey)) return;
  const action = event.shiftKey
    ? { o: newChat }[event.key.toLowerCase()]
    : { k: search, b: toggleSidebar, ",": () => (panelOpen.value = !panelOpen.value), "/": () => (shortcutsOpen.value = true) }[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

/** Whether files hover over the page. */
function useDrop(): boolean {
  const [isOver, setOver] = useState(false);
  useEffect(() => {
    const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files");
    const over = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(true);
    };
    const leave = (event: DragEvent) => event.relatedTarget === null && setOver(false);
    const dropped = (event: DragEvent) => {
      setOver(false);
      if (!hasFiles(event)) return;
      event.preventDefault();
      attach([...event.dataTransfer!.files]);
      document.getElementById("prompt")?.focus();
    };
    addEventListener("dragover", over);
    addEventListener("dragleave", leave);
    addEventListener("drop", dropped);
    return () => {
      removeEventListener("dragover", over);
      removeEventListener("dragleave", leave);
      removeEventListener("drop", dropped);
    };
  }, []);
  return isOver;
}

function Toast() {
  const shown = toast.value;
  if (!shown) return null;
  const undo = () => {
    shown.undo?.();
    toast.value = null;
  };
  return <div class="toast"><span>{shown.text}</span>{shown.undo && <button type="button" onClick={undo}>Undo</button>}</div>;
}

export function App() {
  const isDropping = useDrop();
  useEffect(() => {
    addEventListener("keydown", press);
    if (innerWidth > 900) document.getElementById("prompt")?.focus();
    return () => removeEventListener("keydown", press);
  }, []);
  return (
    <>
      <a class="skip" href="#prompt" onClick={(event) => (event.preventDefault(), document.getElementById("prompt")?.focus())}>Skip to the message field</a>
      <Sidebar />
      <div class="middle">
        <TopBar />
        <Conversation />
      </div>
      <Panel />
      <Shortcuts />
      <Toast />
      {isDropping && <div class="drop">Drop files here</div>}
      <p id="status" class="hidden" role="status">{announcement.value}</p>
    </>
  );
}
