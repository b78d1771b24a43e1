// Formulas. A part of the bundle that is loaded with the first formula.
import katex from "katex";

/** Replaces the TeX in an element by its formula. A wrong formula stays visible as text. */
export function typeset(element: HTMLElement): void {
  const source = element.textContent ?? "";
  try {
    katex.render(source, element, {
      displayMode: element.classList.contains("block"),
      throwOnError: true,
      trust: false,
      strict: "ignore",
      maxExpand: 500,
      maxSize: 20,
    });
  } catch (error) {
    element.textContent = source;
    element.title = error instanceof Error ? error.message : String(error);
    element.classList.add("wrong");
  }
}
