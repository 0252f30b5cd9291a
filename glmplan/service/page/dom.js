// Elements, numbers in words, and questions to the service.

import { unpressed } from "./steady.js";

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: attributes by name, `text` for its text, functions as listeners; children follow. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") node.textContent = value;
    else if (typeof value === "function") node.addEventListener(key, value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== false));
  return node;
}

/** A command in words that are broken between them, not behind the hyphens of an option. */
export const typed = (text) => text.split(/(\s+)/).map((word) => (word.includes("-") && word.length <= 36 ? el("span", { class: "u", text: word }) : word));

/** What is kept between visits; a browser that keeps nothing is asked in vain. */
export function kept(store, name, value) {
  try {
    if (value !== undefined) window[store].setItem(name, value);
    return window[store].getItem(name) || "";
  } catch {
    return value || "";
  }
}

export const at = (id) => document.getElementById(id);

/** A number with about three digits, as people read it. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${new Intl.NumberFormat("en", { maximumSignificantDigits: digits }).format(value / 1e6)} M`;
  const options = size >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: digits };
  return new Intl.NumberFormat("en", options).format(size >= 1000 ? Number(value.toPrecision(Math.max(digits, 3))) : value);
}

export const whole = (value) => new Intl.NumberFormat("en", { maximumFractionDigits: 0 }).format(value);
export const money = (value) => (value === null || value === undefined ? "–" : `$${value < 100 ? value.toFixed(2) : whole(Number(value.toPrecision(4)))}`);
export const span = (figure) => (figure ? `${number(figure.low)} to ${number(figure.high)}` : "");

/** Time given in ms, as ms or s. */
export const time = (ms) => (ms === null || ms === undefined ? "–" : ms < 1000 ? `${number(ms)} ms` : `${number(ms / 1000)} s`);

export class Refused extends Error {
  constructor(error, status) {
    super(error.message);
    this.error = error;
    this.status = status;
  }
}

let token = "";
/** Keep the token of the service for this visit. */
export function useToken(given) {
  token = given;
  if (token) kept("sessionStorage", "token", token);
}
useToken(new URLSearchParams(location.hash.slice(1)).get("token") || kept("sessionStorage", "token"));

const none = (value) => value === undefined || value === null || value === false || (Array.isArray(value) && !value.length);
const same = (question) => JSON.stringify(Object.entries(question || {}).filter(([name, value]) => name !== "users" && !none(value)).sort());
const usersOf = (question) => [question?.users ?? []].flat();

/** The address of a page: a site without a server has files. */
export const pageOf = (name) => (window.glmplanAnswers ? `${name || "index"}.html` : name || "./");

/** Options of a question as those of the command line. */
function optionsOf(options, write) {
  const names = { rates: "rate" };
  const value = (name, one) => (["tpot_limit", "ttft_limit"].includes(name) ? `${one}s` : one);
  const all = Object.entries(options).filter(([name, one]) => !none(one) && name !== "changes");
  return all.flatMap(([name, one]) => (["price", "rates", "term"].includes(name) ? one : [one]).map((each) => write((names[name] ?? name).replaceAll("_", "-"), each === true ? true : value(name, each))));
}
const option = (name, value) => (value === true ? `--${name}` : `--${name} '${value}'`);
/** Options that the commands of a workbook and of a drawing do not have. */
const UNKNOWN = { workbook: ["host_memory", "host_memory_bandwidth", "host_cores", "power_limit", "recipe"] };

/** The command that computes what a site without a server does not hold. */
function commandOf(address, { plans, model, on, name, text, facts, answers, ...options }) {
  if (facts) return `glmplan runs import '${name || "FILE"}' --model ${facts.model || "MODEL"} --on ${facts.accelerator_count || 1}x${facts.accelerator || "ACCELERATOR"} --out runs.csv && glmplan predict --runs runs.csv`;
  const kind = address.slice("v1/".length).replace("cost", "workbook");
  const own = ({ model: one, on: where, ...rest }) => `'${[`${one}@${where}`, ...optionsOf(rest, (what, value) => `${what}=${value}`)].join()}'`;
  const begins = {
    compare: () => ["glmplan compare", ...plans.map(own)],
    explain: () => ["glmplan fit", model, "--on", on, "--explain"],
    fit: () => ["glmplan fit", model, "--on", on],
    links: () => ["glmplan hardware draw", on],
    size: () => ["glmplan size --model", model],
    workbook: () => ["glmplan sheet new plan.xlsx --model", model, "--on", on],
  };
  const rest = Object.fromEntries(Object.entries(options).filter(([field]) => !UNKNOWN[kind]?.includes(field)));
  return [...(begins[kind]?.() ?? [`glmplan ${kind}`]), ...optionsOf(rest, option)].join(" ");
}

/** An answer that `glmplan site` computed: to the same question, of as many users or more. */
function stored(address, question) {
  const users = usersOf(question);
  const most = (one) => Number(Math.max(...usersOf(one)) !== Math.max(...users));
  const found = (window.glmplanAnswers[address] || [])
    .filter(([asked]) => same(asked) === same(question) && users.every((count) => usersOf(asked).includes(count)))
    .sort(([one], [other]) => most(one) - most(other))[0];
  if (!found) throw new Refused({ message: question ? `This site holds no answer to this question. It is computed by: ${commandOf(address, question)}` : "This site holds no such answer; glmplan serve has it." }, 404);
  const [, answer, status] = found;
  if (status !== 200) throw new Refused(answer.error, status);
  return Array.isArray(answer.users) ? { ...answer, users: answer.users.filter((row) => users.includes(row.users)) } : answer;
}

/** Ask the service, or the answers of a site without one; what is refused is thrown with its words. */
export async function ask(address, question, signal) {
  if (window.glmplanAnswers) return stored(address, question);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const options = { headers, signal, cache: "no-store" };
  if (question !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(question);
    headers["content-type"] = "application/json";
  }
  const answer = await fetch(address, options);
  const found = await answer.json();
  // whoever asked draws next: not under a button that is pressed, which may ask something else
  await unpressed();
  signal?.throwIfAborted();
  if (!answer.ok) throw new Refused(found.error || { message: `the service answered ${answer.status}` }, answer.status);
  return found;
}

/** A table: columns as [title, field or function, is a number]. */
export function table(rows, columns, { caption = "", here = () => false } = {}) {
  const cell = (row, [, field]) => (typeof field === "function" ? field(row) : row[field]);
  return el(
    "table",
    {},
    caption && el("caption", { class: "sr", text: caption }),
    el("thead", {}, el("tr", {}, columns.map(([title, , right]) => el(title ? "th" : "td", { scope: title ? "col" : null, class: right && "n", text: title })))),
    el(
      "tbody",
      {},
      rows.map((row) =>
        el(
          "tr",
          { class: here(row) && "here" },
          columns.map((column, place) => el(place ? "td" : "th", { class: column[2] && "n", scope: place ? null : "row" }, cell(row, column) ?? "–")),
        ),
      ),
    ),
  );
}
