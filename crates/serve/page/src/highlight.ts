// Colours of code. A part of the bundle that is loaded with the first block of code.
import hljs from "highlight.js/lib/common";

/** HTML of the code with marked tokens, or `undefined` for an unknown language. */
export function highlight(code: string, language: string): string | undefined {
  return hljs.getLanguage(language) && hljs.highlight(code, { language, ignoreIllegals: true }).value;
}
