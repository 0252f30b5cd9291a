// Terms with the sentence of the glossary, errors in the words of the form, theme, copying.

import { at, el, kept, money, Refused, useToken } from "./dom.js";

/** Sentences of docs/glossary.md. */
const TERMS = {
  "acceptance length": "mean number of tokens gained in a step with speculative decoding: one plus the accepted draft tokens",
  concurrency: "requests in flight at the same time; with closed-loop users, the number of users",
  decode: "generation of the output tokens after the prompt",
  "evidence level": "class of the measurements behind a prediction, from the same configuration down to none",
  extrapolated: "outside the calibrated domain",
  "KV cache": "keys and values (or latents) of the tokens of running requests",
  "KV pool": "memory that an engine sets aside for the KV cache",
  layout: "the parallel degrees of a deployment: TP, PP, DP, EP, DCP",
  prefill: "computation of the prompt",
  SLO: "service level objective: limits on metrics, as in `ttft p95 < 2 s`",
  step: "one pass of an engine over its batch",
  TPOT: "time per output token after the first, one value for each request",
  TTFT: "time from sending a request to its first token",
};
const TERM = new RegExp(`(?<![\\w/-])(${Object.keys(TERMS).join("|")})(?![\\w/-])`, "i");
const keyOf = (word) => Object.keys(TERMS).find((term) => term.toLowerCase() === word.toLowerCase());

function explained(button, term) {
  button.title = `${term}: ${TERMS[term]}`;
  button.addEventListener("click", () => said(button.title));
  return button;
}

/** Underlined terms of the page say their sentence on hover and press. */
export function explainTerms() {
  for (const one of document.querySelectorAll("[data-term]")) explained(one, one.dataset.term);
}

/** A text in which each term, once, says its sentence. */
export function glossed(text) {
  const told = new Set();
  return text.split(TERM).map((part, place) => {
    const term = place % 2 && keyOf(part);
    if (!term || told.has(term)) return part;
    told.add(term);
    return explained(el("button", { type: "button", class: "term", text: part }), term);
  });
}

/** Paragraphs of an arithmetic. */
export const lines = (texts) => texts.filter(Boolean).map((text) => el("p", {}, glossed(text)));

/** A value of a table that opens its arithmetic, and asks for `more` of it then; a value without one is text. */
export function opens(shown, texts, more) {
  const told = lines(texts);
  if (!told.length) return shown;
  return unfolds(el("details", { class: "cell" }, el("summary", {}, shown), el("div", { class: "note" }, told)), more);
}

/** Ask for the rest of the arithmetic of a number when it is first opened. */
export function unfolds(details, more) {
  if (!more) return details;
  const fill = async () => {
    const place = el("div", { text: "…" });
    details.querySelector(".note").append(place);
    const found = await more().catch((error) => el("p", { text: plain(error.message) }));
    place.replaceChildren(...[found].flat());
  };
  details.addEventListener("toggle", fill, { once: true });
  return details;
}

/** Evidence levels as the command line writes them. */
export const LEVELS = {
  site: "measured here", configuration: "measured", release: "other version", group: "other layout", group_release: "other layout and version",
  pair: "model and GPU separately", adapters: "without LoRA adapters", unlike: "GPUs never together", apart: "not disaggregated", format: "other quantization",
  accelerator: "GPU only", model: "model only", engine: "engine only", nothing: "none",
};

/** An error without words of the command line: fields have their names in the form. */
export function plain(message) {
  return message
    .replace(/^[a-z_.\d]+(, item \d+)?: /, "")
    .replace(/^([^:]*: )?(is of no kind)/, "This file $2")
    .replace(/Any result can be given to [^:]* as a CSV/, "Any result is read as a CSV")
    .replace(", nor a file", "")
    .replaceAll(/: `glmplan fit` shows the shortfall/g, "")
    .replaceAll(/[;,]? ?\(?see `glmplan [^`]*`\)?/g, "")
    .replace(/[;,] or give (its|a) .*$/s, "")
    .replaceAll(/`glmplan (\w+)[^`]*`/g, "the command glmplan $1")
    .replaceAll(/`([a-z_\d]+)`/g, (_, field) => `“${nameOf(field)}”`);
}

/** A text with the fields of the form in the place of options of the command line. */
export const inForm = (text) => text.replaceAll(/--([a-z-]+) (\S*\w)/g, (option, name, value) => (at(name.replaceAll("-", "_"))?.form ? `“${nameOf(name.replaceAll("-", "_"))}” ${value}` : option));

/** The name that the form has for a field. */
export function nameOf(field) {
  const control = at(field);
  const text = control?.getAttribute("aria-label") ?? [...(control?.closest("label")?.childNodes ?? [])].filter((one) => one.nodeType === 3).map((one) => one.data.trim()).join("");
  return text || { on: "Machine", mtp: "Drafted tokens" }[field] || field.replaceAll("_", " ");
}

/** Show why there is no answer, beside the field that it names; that field and the error of the service. */
export function refusal(error, fieldOf = (name) => name) {
  const box = at("problem");
  for (const field of document.querySelectorAll("[aria-invalid]")) for (const [name, value] of [["aria-invalid", "true"], ["aria-describedby", "problem"]]) if (field.getAttribute(name) === value) field.removeAttribute(name);
  box.hidden = !error;
  // the answer below belongs to another question
  at("answer").toggleAttribute("data-refused", Boolean(error));
  box.replaceChildren();
  at("token-form")?.remove();
  if (!error) return {};
  const wrong = error instanceof Refused ? error.error : { message: "The service does not answer. Is glmplan serve still running?" };
  // a number of users is one of a list, a fact one of a record
  const field = fieldOf(wrong.field)?.split(".").findLast((name) => at(name)?.form);
  const control = field && at(field);
  if (control) for (const [name, value] of [["aria-invalid", "true"], ["aria-describedby", "problem"]]) control.setAttribute(name, value);
  const known = error.status === 401 && kept("sessionStorage", "token");
  const message = error.status === 401 ? (known ? "The service does not take this token." : "Type the token of this service.") : error.status === 0 ? wrong.message : plain(wrong.message);
  // a message of several lines ends with the form of a file; of a long one the first clause says the error
  const [line, ...form] = message.split("\n");
  const end = line.length > 200 ? line.search(/[;.] /) : -1;
  const subject = error.status === 0 ? "" : control ? `${nameOf(field)}: ` : "";
  box.append(el("strong", { text: `${subject}${end < 0 ? line : `${line.slice(0, end)}.`}` }));
  if (end >= 0) box.append(el("p", { text: `${line[end + 2].toUpperCase()}${line.slice(end + 3)}` }));
  if (form.length) box.append(el("pre", { tabindex: "0", text: form.join("\n") }));
  if (error.status === 401) {
    box.closest("form").before(tokenForm());
    if (known) at("token").focus();
  }
  return { control, wrong };
}

/** The field for the token of the service; with it the page begins again. */
function tokenForm() {
  const field = el("input", { id: "token", type: "password", autocomplete: "off" });
  const given = (event) => {
    event.preventDefault();
    useToken(field.value.trim());
    refusal(null);
    at("model").focus();
    dispatchEvent(new Event("token"));
  };
  return el("form", { id: "token-form", class: "card", "aria-label": "Token", submit: given }, el("label", { for: "token", text: "This service asks for a token" }), " ", field, " ", el("button", { class: "primary", text: "Use it" }));
}

let shown = 0;
/** Say something for a few seconds, to screen readers too. */
export function said(text) {
  at("said").textContent = text;
  at("said").classList.add("shown");
  clearTimeout(shown);
  shown = setTimeout(() => at("said").classList.remove("shown"), 6000);
}

/** Put text on the clipboard and say so: at once, and without TLS too, where a browser gives no clipboard to a script. */
export async function copy(text, words) {
  let done = false;
  const give = (event) => {
    event.preventDefault();
    event.clipboardData.setData("text/plain", text);
    done = true;
  };
  document.addEventListener("copy", give);
  document.execCommand("copy");
  document.removeEventListener("copy", give);
  if (!done) done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  said(done ? words : text);
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

/** A missing or assumed price without the option of the command line: the form has a field for it. */
export const withoutOption = (text) => text.replaceAll(/: set --[^;]*/g, "");

/** The lines of a month and their sum. */
export function sumLine({ month_lines: all, usd_month: sum }) {
  const parts = Object.entries(all).filter(([, usd]) => usd);
  return parts.map(([name, usd]) => `${name.replaceAll("_", " ")} ${money(usd)}`).join(" + ") + (parts.length > 1 ? ` = ${money(sum)} a month.` : " a month.");
}

/** Prices that are assumed, as the price of a host. */
export const assumedLines = (way) => way.price_assumed.map((text) => `${withoutOption(text)}.`);
