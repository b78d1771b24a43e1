// Small parts that several places of the page use.
import type { IconNode } from "lucide";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "./icons";

interface IconButtonProps {
  icon: IconNode;
  label: string;
  onClick: (event: MouseEvent) => void;
  class?: string;
  size?: number;
  pressed?: boolean;
  expanded?: boolean;
  controls?: string;
  disabled?: boolean;
  id?: string;
}

export function IconButton({ icon, label, onClick, size, pressed, expanded, controls, disabled, id, ...rest }: IconButtonProps) {
  return (
    <button type="button" id={id} class={`icon-button ${rest.class ?? ""}`} title={label} aria-label={label} aria-pressed={pressed} aria-expanded={expanded} aria-controls={controls} disabled={disabled} onClick={onClick}>
      <Icon of={icon} size={size} />
    </button>
  );
}

/** Calls `close` when a click or the focus goes elsewhere, and on Escape. */
export function useDismiss(isOpen: boolean, close: () => void) {
  const ref = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    const outside = (event: Event) => {
      if (event.target instanceof Node && !ref.current?.contains(event.target)) close();
    };
    const escape = (event: KeyboardEvent) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
      ref.current?.querySelector<HTMLElement>("button")?.focus();
    };
    const element = ref.current;
    document.addEventListener("pointerdown", outside);
    document.addEventListener("focusin", outside);
    element?.addEventListener("keydown", escape);
    return () => {
      document.removeEventListener("pointerdown", outside);
      document.removeEventListener("focusin", outside);
      element?.removeEventListener("keydown", escape);
    };
  }, [isOpen]);
  return ref;
}

/** A modal dialog of the browser's own kind. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => ref.current?.showModal(), []);
  return (
    <dialog ref={ref} aria-label={title} onClose={onClose} onClick={(event) => event.target === ref.current && ref.current?.close()}>
      <h2>{title}</h2>
      {children}
      <form method="dialog">
        <button class="button">Close</button>
      </form>
    </dialog>
  );
}

/** A large number with separators. */
export const count = (value: number): string => value.toLocaleString("en");

export const bytes = (value: number): string => (value >= 1e9 ? `${(value / 1e9).toFixed(1)} GB` : `${Math.max(1, Math.round(value / 1e6))} MB`);
