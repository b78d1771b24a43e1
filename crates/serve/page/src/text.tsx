// Markdown on the screen. While an answer grows, only its changed blocks are drawn anew.
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { enhance } from "./enhance";
import { blocks, harmless } from "./markdown";

function Block({ html }: { html: string }) {
  const ref = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => ref.current?.replaceChildren(enhance(harmless(html))), [html]);
  return <div class="block" ref={ref} />;
}

export function Markdown({ text }: { text: string }) {
  const made = useMemo(() => blocks(text), [text]);
  return <div class="markdown">{made.map((html, at) => <Block key={at} html={html} />)}</div>;
}
