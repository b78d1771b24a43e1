// The bar above the conversation: model picker, and buttons for the side panels.
import { Check, ChevronDown, PanelLeftOpen, SlidersHorizontal, SquarePen } from "lucide";
import { useEffect, useState } from "preact/hooks";
import { Icon } from "./icons";
import { bytes, count, IconButton, useDismiss } from "./parts";
import { newChat } from "./sidebar";
import { chatModels, choose, current, model, panelOpen, refreshModels, sidebarOpen, toggleSidebar } from "./state";
import type { Model } from "./types";

const STATES: Record<string, string> = { loaded: "ready", unloaded: "loads at its first message", loading: "loading" };

function facts(entry: Model): string {
  const parts = [STATES[entry.status?.value ?? "loaded"] ?? entry.status?.value];
  if (entry.size) parts.push(bytes(entry.size));
  if (entry.context_length) parts.push(`${count(entry.context_length)} tokens`);
  if (entry.capabilities?.chat === false) parts.push("no chat template");
  return parts.filter(Boolean).join(" · ");
}

const Dot = ({ of }: { of: Model }) => <span class={`dot ${of.status?.value ?? "loaded"}`} />;

function ModelPicker() {
  const [isOpen, setOpen] = useState(false);
  const ref = useDismiss(isOpen, () => setOpen(false));
  useEffect(() => {
    if (!isOpen) return;
    void refreshModels();
    ref.current?.querySelector<HTMLElement>("[aria-selected=true]")?.focus();
  }, [isOpen]);
  const chosen = model.value;
  if (!chosen) return <span class="model-none">No model</span>;
  const take = (entry: Model) => {
    choose(entry.id);
    setOpen(false);
    document.getElementById("model")?.focus();
  };
  const press = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const entries = [...ref.current!.querySelectorAll<HTMLElement>("[role=option]")];
    const at = entries.indexOf(document.activeElement as HTMLElement);
    entries[(at + step + entries.length) % entries.length]?.focus();
  };
  return (
    <div class="picker" ref={ref}>
      <button type="button" id="model" class="picker-button" aria-haspopup="listbox" aria-expanded={isOpen} aria-label={`Model: ${chosen.id}`} onClick={() => setOpen(!isOpen)}>
        <Dot of={chosen} />
        <span class="picker-name">{chosen.id}</span>
        <Icon of={ChevronDown} size={16} />
      </button>
      {isOpen && (
        <div class="menu models" role="listbox" aria-label="Models" onKeyDown={press}>
          {chatModels.value.map((entry) => (
            <button type="button" key={entry.id} role="option" aria-selected={entry === chosen} class="model" onClick={() => take(entry)}>
              <Dot of={entry} />
              <span class="model-text"><span class="model-name">{entry.id}</span><span class="model-facts">{facts(entry)}</span></span>
              {entry === chosen && <Icon of={Check} size={16} />}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}

export function TopBar() {
  return (
    <header class="topbar">
      {!sidebarOpen.value && (
        <>
          <IconButton id="show-chats" icon={PanelLeftOpen} label="Show the chats" onClick={toggleSidebar} />
          <IconButton icon={SquarePen} label="New chat" onClick={newChat} />
        </>
      )}
      <ModelPicker />
      <h1 class={`chat-title ${current.value ? "" : "clear"}`}>{current.value?.title ?? "New chat"}</h1>
      <IconButton id="toggle-panel" icon={SlidersHorizontal} label="Settings" expanded={panelOpen.value} controls="panel" onClick={() => (panelOpen.value = !panelOpen.value)} />
    </header>
  );
}
