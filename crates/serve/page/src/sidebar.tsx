// The list of chats: search, rename, delete, export.
import { Download, Ellipsis, Keyboard, PanelLeftClose, Pencil, Search, SquarePen, Trash2 } from "lucide";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { download } from "./export";
import { Flame, Icon } from "./icons";
import { IconButton, useDismiss } from "./parts";
import { chats, currentId, open, remove, rename, running, searchText, shortcutsOpen, sidebarOpen, toggleSidebar } from "./state";
import type { Chat } from "./types";

export function newChat(): void {
  open(null);
  document.getElementById("prompt")?.focus();
}

const DAY = 86_400_000;

/** The heading under which a chat is listed. */
function period(time: number): string {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  return time >= today - 7 * DAY ? "Last 7 days" : "Earlier";
}

/** The text around the first match of a search in a chat's messages. */
function excerpt(chat: Chat, wanted: string): string | undefined {
  for (const { content } of Object.values(chat.messages)) {
    const at = content.toLowerCase().indexOf(wanted);
    if (at >= 0) return `${at > 20 ? "…" : ""}${content.slice(Math.max(0, at - 20), at + 60).replace(/\s+/g, " ")}`;
  }
  return undefined;
}

function found(): { chat: Chat; excerpt?: string }[] {
  const wanted = searchText.value.trim().toLowerCase();
  const listed = [...chats.value].sort((a, b) => b.updated - a.updated);
  if (!wanted) return listed.map((chat) => ({ chat }));
  const matches = listed.map((chat) => ({ chat, excerpt: excerpt(chat, wanted) }));
  return matches.filter(({ chat, excerpt }) => excerpt || chat.title.toLowerCase().includes(wanted));
}

function Rename({ chat, onDone }: { chat: Chat; onDone: () => void }) {
  const ref = useRef<HTMLInputElement>(null);
  const isOver = useRef(false);
  useLayoutEffect(() => {
    ref.current?.focus();
    ref.current?.select();
  }, []);
  const finish = (keep: boolean) => {
    if (isOver.current) return;
    isOver.current = true;
    if (keep) rename(chat.id, ref.current!.value);
    onDone();
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.isComposing) finish(true);
    if (event.key === "Escape") {
      event.stopPropagation();
      finish(false);
    }
  };
  return <input ref={ref} class="rename" aria-label="Title of the chat" defaultValue={chat.title} onKeyDown={press} onBlur={() => finish(true)} />;
}

function Entry({ chat, excerpt }: { chat: Chat; excerpt?: string }) {
  const [isRenaming, setRenaming] = useState(false);
  const [isOpen, setOpen] = useState(false);
  const menu = useDismiss(isOpen, () => setOpen(false));
  const isCurrent = chat.id === currentId.value;
  const act = (action: () => void) => () => {
    setOpen(false);
    action();
  };
  if (isRenaming) return <li class="entry current"><Rename chat={chat} onDone={() => setRenaming(false)} /></li>;
  return (
    <li class={`entry ${isCurrent ? "current" : ""}`}>
      <button type="button" class="entry-open" aria-current={isCurrent ? "page" : undefined} onClick={() => open(chat.id)} onDblClick={() => setRenaming(true)}>
        <span class="entry-title">{chat.title}</span>
        {excerpt && <span class="entry-excerpt">{excerpt}</span>}
        {running.value[chat.id] && <span class="busy" role="img" aria-label="An answer is being written" />}
      </button>
      <div class="entry-menu" ref={menu}>
        <IconButton icon={Ellipsis} label={`Actions for ${chat.title}`} size={16} expanded={isOpen} onClick={() => setOpen(!isOpen)} />
        {isOpen && (
          <div class="menu">
            <button type="button" onClick={act(() => setRenaming(true))}><Icon of={Pencil} size={15} />Rename</button>
            <button type="button" onClick={act(() => download(chat, "md"))}><Icon of={Download} size={15} />Save as Markdown</button>
            <button type="button" onClick={act(() => download(chat, "json"))}><Icon of={Download} size={15} />Save as JSON</button>
            <button type="button" class="danger" onClick={act(() => remove(chat.id))}><Icon of={Trash2} size={15} />Delete</button>
          </div>
        )}
      </div>
    </li>
  );
}

function Groups() {
  const listed = found();
  if (!listed.length) return <p class="none">{searchText.value ? "No chat contains this." : "Your chats will be listed here. They stay in this browser."}</p>;
  const groups = new Map<string, typeof listed>();
  for (const entry of listed) {
    const name = searchText.value ? "Found" : period(entry.chat.updated);
    groups.set(name, [...(groups.get(name) ?? []), entry]);
  }
  return (
    <>
      {[...groups].map(([name, entries]) => (
        <section key={name}>
          <h2>{name}</h2>
          <ul>{entries.map(({ chat, excerpt }) => <Entry key={chat.id} chat={chat} excerpt={excerpt} />)}</ul>
        </section>
      ))}
    </>
  );
}

export function Sidebar() {
  if (!sidebarOpen.value) return null;
  return (
    <>
      <div class="scrim" onClick={toggleSidebar} />
      <nav id="sidebar" aria-label="Chats">
        <div class="sidebar-head">
          <span class="brand"><Flame />Flambeau</span>
          <IconButton icon={PanelLeftClose} label="Hide the chats" onClick={toggleSidebar} />
        </div>
        <button type="button" class="new-chat" onClick={newChat}><Icon of={SquarePen} size={17} />New chat</button>
        <label class="search">
          <Icon of={Search} size={16} />
          <input id="search" type="search" placeholder="Search chats" aria-label="Search chats" value={searchText.value} onInput={(event) => (searchText.value = event.currentTarget.value)} />
        </label>
        <div class="entries"><Groups /></div>
        <button type="button" class="keys-button" onClick={() => (shortcutsOpen.value = true)}><Icon of={Keyboard} size={16} />Keys</button>
      </nav>
    </>
  );
}
