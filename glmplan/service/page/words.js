// Terms with the sentence of the glossary, errors in the words of the form, theme, copying.

import { at, el, kept } from "./dom.js";

const TERMS = {
  TPOT: "TPOT: time per output token after the first, one value for each request. 10 tokens/s is 100 ms.",
  TTFT: "TTFT: time from sending a request to its first token.",
};

/** Underlined terms open their sentence on hover, focus and press. */
export function explainTerms() {
  for (const one of document.querySelectorAll("[data-term]")) {
    one.title = TERMS[one.dataset.term];
    one.addEventListener("click", () => said(one.title));
  }
}

/** An error without words of the command line: flags become names of fields. */
export function plain(message) {
  return message
    .replace(/^[a-z_.\d]+: /, "")
    .replaceAll(/,? ?\(?see `glmplan [^`]*`\)?/g, "")
    .replaceAll(/`glmplan (\w+)[^`]*`/g, "the command glmplan $1")
    .replaceAll(/--([a-z][a-z-]*)/g, (_, flag) => `“${nameOf(flag.replaceAll("-", "_"))}”`);
}

/** The name that the form has for a field. */
export function nameOf(field) {
  const control = at(field);
  const text = control?.getAttribute("aria-label") ?? [...(control?.closest("label")?.childNodes ?? [])].filter((one) => one.nodeType === 3).map((one) => one.data.trim()).join("");
  return text || { on: "Machine", mtp: "Drafted tokens" }[field] || field.replaceAll("_", " ");
}

let shown = 0;
/** Say something for a few seconds, to screen readers too. */
export function said(text) {
  at("said").textContent = text;
  at("said").classList.add("shown");
  clearTimeout(shown);
  shown = setTimeout(() => at("said").classList.remove("shown"), 6000);
}

export async function copy(text, words) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // without TLS, on another machine than this one, a browser gives no clipboard to a script
    const field = el("textarea", { "aria-hidden": "true", tabindex: "-1", class: "sr" });
    const before = document.activeElement;
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    before?.focus();
    if (!done) return said(text);
  }
  said(words);
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  at("theme").setAttribute("aria-pressed", String(dark));
}

const stored = kept("localStorage", "theme");
theme(stored ? stored === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
at("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme !== "dark";
  kept("localStorage", "theme", dark ? "dark" : "light");
  theme(dark);
});
