// What is asked: fields of the form, the address of the page, and the words of the command line. One list says all.

import { at } from "./dom.js";

export const START = { model: "glm-5.1-nvfp4", on: "6xrtx-pro-6000-ws", users: "8" };
/** fields of the options of a plan beside model and machine, which the service derives from its request */
const OPTIONS = [...document.querySelectorAll("#question [data-option]")];
export const NAMES = OPTIONS.map((one) => one.name);
const PRICES = ["buy", "rent", "electricity", "api_in", "api_out"];
export const FIELDS = ["model", "on", "users", ...NAMES, ...PRICES];
export const MOST = 4;

/** The question and the compared ones that an address names. */
export function fromAddress() {
  const given = new URLSearchParams(location.search);
  const state = {};
  for (const name of FIELDS) if (given.get(name)) state[name] = given.get(name);
  const others = given.getAll("vs").slice(0, MOST).map((words) => Object.fromEntries(new URLSearchParams(words)));
  return { state: Object.keys(state).length ? { ...START, ...state } : { ...START }, others };
}

export function toAddress(state, others) {
  const given = new URLSearchParams();
  for (const name of FIELDS) if (state[name]) given.set(name, state[name]);
  for (const one of others) given.append("vs", new URLSearchParams(one).toString());
  return `${location.pathname}?${given}`;
}

/** The part of a state that is the plan, as the service takes it. */
export function plan(state) {
  const found = { model: state.model, on: state.on };
  for (const { name, dataset } of OPTIONS) if (state[name]) found[name] = valued(dataset.option, state[name]);
  return found;
}

/** An option as the service takes it: of its kind. */
const valued = (kind, text) => (kind === "flag" ? true : kind === "whole" || kind === "number" ? Number(text) : text);

/** Prices of the buyer in the words of the command line. */
export function prices(state, catalogue) {
  const entry = catalogue.hardware.find((one) => one.name === partOf(state.on).part);
  const model = modelOf(state.model, catalogue);
  const found = [];
  if (state.buy) found.push(`${state.on}=${state.buy}`);
  if (state.rent) found.push(`${entry ? entry.accelerator : partOf(state.on).part}:rent=${state.rent}`);
  if (state.electricity) found.push(`electricity=${state.electricity}`);
  if (state.api_in && model) found.push(`${model.name}:input=${state.api_in}`);
  if (state.api_out && model) found.push(`${model.name}:output=${state.api_out}`);
  return found;
}

export function partOf(on) {
  const match = /^(\d+)x(.+)$/.exec(on || "");
  return match ? { cards: match[1], part: match[2] } : { cards: "", part: on || "" };
}

/** The entry of the catalogue that a name, perhaps with its format, begins with. */
export function modelOf(name, catalogue) {
  const fits = catalogue.models.filter((one) => name === one.name || name.startsWith(`${one.name}-`));
  return fits.sort((one, other) => other.name.length - one.name.length)[0];
}

const quoted = (word) => (/^[\w.:,=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** The same question on the command line. */
export function commandLine(state) {
  const words = ["glmplan", "fit", quoted(state.model), "--on", quoted(state.on)];
  for (const { name, dataset } of OPTIONS) if (state[name]) words.push(`--${name.replaceAll("_", "-")}`, ...(dataset.option === "flag" ? [] : [quoted(String(state[name]))]));
  if (state.users) words.push("--users", Number(state.users) > 1 ? `1,${state.users}` : "1");
  return words.join(" ");
}

/** The question what would carry one user, where this machine does not. */
export function sizeLine(question) {
  const { model, input_tokens: input, output_tokens: output } = question;
  return `glmplan size --model ${quoted(model)} --users 1 --input ${input} --output ${output} --slo 'tpot p95 < 100 ms'`;
}

function choose(select, options, value) {
  const known = options.some(([name]) => name === value);
  const all = known || !value ? options : [...options, [value, value]];
  select.replaceChildren(...all.map(([name, words]) => new Option(words ?? name, name)));
  select.value = value || "";
}

/** Fill the form from a state. */
export function show(state, catalogue) {
  const entry = modelOf(state.model, catalogue);
  const name = entry ? entry.name : state.model;
  const format = state.weights || (entry && state.model !== entry.name ? state.model.slice(entry.name.length + 1) : "");
  choose(at("model"), catalogue.models.map((one) => [one.name, `${one.name} (${one.total_b >= 10 ? Math.round(one.total_b) : one.total_b} B)`]), name);
  choose(at("weights"), [["", "default"], ...(entry ? entry.checkpoints.map((one) => [one, one]) : [])], format);
  choose(at("kv"), [["", "chosen"], ...catalogue.kv_formats.map((one) => [one, one])], state.kv);
  choose(at("engine"), [["", "chosen"], ...catalogue.engines.map((one) => [one.name, one.name])], state.engine);
  hardware(state, catalogue);
  for (const one of OPTIONS) if (one.type === "checkbox") one.checked = Boolean(state[one.name]);
  for (const field of ["users", ...OPTIONS.filter((one) => one.tagName === "INPUT" && one.type !== "checkbox").map((one) => one.name), ...PRICES]) at(field).value = state[field] || "";
  if ([...at("more").querySelectorAll("input, select")].some((one) => state[one.name])) at("more").open = true;
}

function hardware(state, catalogue) {
  const { cards, part } = partOf(state.on);
  const entry = catalogue.hardware.find((one) => one.name === part);
  const group = (title, kind) => {
    const found = document.createElement("optgroup");
    found.label = title;
    found.append(...catalogue.hardware.filter((one) => one.kind === kind).map((one) => new Option(words(one), one.name)));
    return found;
  };
  at("part").replaceChildren(group("Cards", "accelerator"), group("Whole machines", "host"));
  if (!entry) at("part").append(new Option(part, part));
  at("part").value = part;
  const whole = Boolean(entry && entry.kind === "host" && !cards);
  at("cards").disabled = whole;
  at("cards").value = whole ? entry.accelerator_count : cards || 1;
}

const words = (one) => (one.kind === "host" ? `${one.name} (${one.accelerator_count} × ${one.accelerator})` : one.memory_gib ? `${one.name} (${Math.round(one.memory_gib)} GiB)` : one.name);

/** Read the form. */
export function read(catalogue) {
  const state = {};
  const format = at("weights").value;
  const entry = catalogue.models.find((one) => one.name === at("model").value);
  // a name with its format is what people write; a format that is none of its checkpoints stays a word of its own
  state.model = format && entry && entry.checkpoints.includes(format) ? `${at("model").value}-${format}` : at("model").value;
  if (format && state.model === at("model").value) state.weights = format;
  const part = catalogue.hardware.find((one) => one.name === at("part").value);
  state.on = part && part.kind === "host" ? part.name : `${at("cards").value || 1}x${at("part").value}`;
  for (const field of ["users", ...NAMES, ...PRICES]) {
    const { type, checked, value } = at(field);
    if (field !== "weights" && (type === "checkbox" ? checked : value)) state[field] = type === "checkbox" ? "true" : value;
  }
  return state;
}
