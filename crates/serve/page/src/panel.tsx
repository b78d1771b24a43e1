// The side panel: system prompt, sampling, output format, API key, colours.
import { Monitor, Moon, RotateCcw, Sun, X } from "lucide";
import { useState } from "preact/hooks";
import { apiKey } from "./api";
import { Icon } from "./icons";
import { IconButton } from "./parts";
import { currentId, defaults, needsKey, options, panelOpen, scheme, setKey, setOptions, setScheme, template, type Scheme } from "./state";
import type { Sampling } from "./types";

interface Range {
  name: keyof Sampling;
  label: string;
  hint: string;
  min: number;
  max: number;
  step: number;
  default?: number;
}

function ranges(): Range[] {
  const { temperature, top_p, top_k, min_p, repeat_penalty } = defaults.value;
  return [
    { name: "temperature", label: "Temperature", hint: "Higher is more varied; 0 always takes the likeliest token.", min: 0, max: 2, step: 0.05, default: temperature },
    { name: "top_p", label: "Top-p", hint: "Samples from the likeliest tokens that together have this probability.", min: 0.01, max: 1, step: 0.01, default: top_p },
    { name: "top_k", label: "Top-k", hint: "Samples from this many tokens; 0 means all.", min: 0, max: 200, step: 1, default: top_k },
    { name: "min_p", label: "Min-p", hint: "Drops tokens less likely than this share of the likeliest one.", min: 0, max: 1, step: 0.01, default: min_p },
    { name: "repetition_penalty", label: "Repetition penalty", hint: "Above 1, tokens that occurred become less likely.", min: 0.5, max: 2, step: 0.01, default: repeat_penalty },
  ];
}

/** A number with at most three decimals. */
const plain = (value: number) => String(Math.round(value * 1000) / 1000);

function Slider({ name, label, hint, min, max, step, default: preset }: Range) {
  const value = options.value[name];
  const shown = value ?? preset;
  const set = (text: string) => {
    const number = Number(text);
    if (text === "") setOptions({ [name]: undefined });
    else if (Number.isFinite(number)) setOptions({ [name]: Math.min(Math.max(number, min), name === "top_k" ? Infinity : max) });
  };
  return (
    <div class={`field slider ${value === undefined ? "unset" : ""}`} title={hint}>
      <label for={name}>{label}</label>
      {value !== undefined && <IconButton icon={RotateCcw} size={13} label={`Reset ${label}`} onClick={() => setOptions({ [name]: undefined })} />}
      <input id={name} class="number" type="number" min={min} step={step} placeholder={preset === undefined ? "default" : plain(preset)} value={value ?? ""} onChange={(event) => set(event.currentTarget.value)} />
      <input type="range" aria-label={`${label}, slider`} min={min} max={max} step={step} value={shown ?? min} onInput={(event) => set(event.currentTarget.value)} />
    </div>
  );
}

function Count({ name, label, placeholder, min }: { name: "max_tokens" | "seed"; label: string; placeholder: string; min?: number }) {
  const set = (text: string) => setOptions({ [name]: text === "" ? undefined : Math.trunc(Number(text)) });
  return (
    <div class="field row">
      <label for={name}>{label}</label>
      <input id={name} class="number" type="number" step={1} min={min} placeholder={placeholder} value={options.value[name] ?? ""} onChange={(event) => set(event.currentTarget.value)} />
    </div>
  );
}

function schemaError(text: string): string {
  if (!text.trim()) return "";
  try {
    const schema: unknown = JSON.parse(text);
    return schema && typeof schema === "object" && !Array.isArray(schema) ? "" : "A schema is a JSON object.";
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

function Schema() {
  const [text, setText] = useState(options.value.schema ?? "");
  const error = schemaError(text);
  const change = (value: string) => {
    setText(value);
    if (!schemaError(value)) setOptions({ schema: value });
  };
  return (
    <div class="field">
      <label for="schema">JSON schema of answers</label>
      <textarea id="schema" class="mono" rows={3} spellcheck={false} placeholder='{"type": "object", …}' aria-invalid={!!error} aria-describedby="schema-error" value={text} onInput={(event) => change(event.currentTarget.value)} />
      <p id="schema-error" class="error" role="status">{error}</p>
    </div>
  );
}

const SCHEMES: [Scheme, string, typeof Sun][] = [["system", "As the system", Monitor], ["light", "Light", Sun], ["dark", "Dark", Moon]];

function Schemes() {
  return (
    <fieldset class="segmented">
      <legend>Colours</legend>
      {SCHEMES.map(([value, label, icon]) => (
        <label key={value} title={label}>
          <input type="radio" name="scheme" value={value} checked={scheme.value === value} aria-label={label} onChange={() => setScheme(value)} />
          <Icon of={icon} size={16} />
        </label>
      ))}
    </fieldset>
  );
}

function Think() {
  if (!template.value.includes("enable_thinking")) return null;
  return (
    <div class="field row">
      <label for="think">Think before answering</label>
      <select id="think" value={options.value.think ?? ""} onChange={(event) => setOptions({ think: (event.currentTarget.value || undefined) as "on" | "off" | undefined })}>
        <option value="">default</option>
        <option value="on">yes</option>
        <option value="off">no</option>
      </select>
    </div>
  );
}

function Key() {
  return (
    <div class="field">
      <label for="key">API key</label>
      <input id="key" type="password" autocomplete="off" placeholder={needsKey.value ? "The server asks for one" : "None needed"} defaultValue={apiKey.get()} onChange={(event) => setKey(event.currentTarget.value)} />
      <p class="hint">It stays in this tab.</p>
    </div>
  );
}

export function Panel() {
  if (!panelOpen.value) return null;
  const close = () => {
    panelOpen.value = false;
    document.getElementById("toggle-panel")?.focus();
  };
  return (
    <>
      <div class="scrim panel-scrim" onClick={close} />
      <aside id="panel" aria-label="Settings" onKeyDown={(event) => event.key === "Escape" && close()}>
        <div class="panel-head">
          <h2>Settings</h2>
          <IconButton icon={X} label="Close settings" onClick={close} />
        </div>
        <div class="panel-body">
          <div class="field">
            <label for="system">System prompt</label>
            <textarea id="system" rows={5} placeholder="You are a helpful assistant." value={options.value.system ?? ""} onInput={(event) => setOptions({ system: event.currentTarget.value })} />
          </div>
          <h3>Sampling</h3>
          {ranges().map((range) => <Slider key={range.name} {...range} />)}
          <Count name="max_tokens" label="Most tokens of an answer" placeholder="context" min={1} />
          <Count name="seed" label="Seed" placeholder="random" />
          <Think />
          <h3>Output</h3>
          <Schema key={currentId.value} />
          <h3>This browser</h3>
          <Schemes />
          <Key />
          <p class="hint"><a href="licenses.txt" target="_blank" rel="noopener">Licences</a> of the page's packages</p>
        </div>
      </aside>
    </>
  );
}
