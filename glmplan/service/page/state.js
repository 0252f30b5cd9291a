// The question: fields of the form, the address of the page, and the words of the command line.

import { at, whole } from "./dom.js";
import { LOAD } from "./load.js";
import { combobox, machineChoices, modelChoices, modelOf } from "./combo.js";

export const START = { model: "glm-5.1", on: "6xrtx-pro-6000-ws", users: "8" };
/** fields of the options of a plan beside model and machine, which the service derives from its request */
const OPTIONS = [...document.querySelectorAll("#question [data-option]")];
export const NAMES = OPTIONS.map((one) => one.name);
const PRICES = ["buy", "rent", "electricity", "api_in", "api_out"];
const SLO = ["rate", "wait"];
/** Fields of the traffic under which the plan is simulated. */
export const TRAFFIC = ["amount", ...LOAD];
export const FIELDS = ["model", "on", "users", ...SLO, ...NAMES, ...PRICES, ...TRAFFIC];
export const MOST = 4;
/** Lengths, and for a batch the load, that a preset sets. */
export const PRESETS = {
  chat: { input: "2048", output: "512" },
  agent: { input: "61440", output: "1024" },
  documents: { input: "16384", output: "512" },
  batch: { input: "4096", output: "512", users: "64", rate: "1", wait: "600" },
};
const PRESET_FIELDS = ["input", "output", "rate", "wait", "use_case", "context"];

/** The name of the preset that a question has; empty for other lengths. */
export function presetOf(state) {
  const usual = { ...state, input: state.input || (state.use_case ? "" : "2048"), output: state.output || (state.use_case ? "" : "512") };
  const holds = ([, fields]) => PRESET_FIELDS.every((name) => (usual[name] || "") === (fields[name] || "") || (!fields[name] && ["rate", "wait"].includes(name)));
  return Object.entries(PRESETS).find(holds)?.[0] ?? "";
}

/** The question with the lengths of a preset. */
export function withPreset(state, name) {
  const kept = Object.fromEntries(Object.entries(state).filter(([field]) => !PRESET_FIELDS.includes(field)));
  return { ...kept, ...PRESETS[name] };
}

/** The question and the compared ones that an address names. */
export function fromAddress() {
  const given = new URLSearchParams(location.search);
  const state = {};
  for (const name of FIELDS) if (given.get(name)) state[name] = given.get(name);
  const others = given.getAll("vs").slice(0, MOST).map((words) => Object.fromEntries(new URLSearchParams(words)));
  return { state: Object.keys(state).length ? { ...START, ...state } : { ...START }, others };
}

export function toAddress(state, others = []) {
  const given = new URLSearchParams();
  for (const name of FIELDS) if (state[name]) given.set(name, state[name]);
  for (const one of others) given.append("vs", new URLSearchParams(one).toString());
  return `${location.pathname}?${given}`;
}

/** The part of a state that is the plan, as the service takes it. */
function plan(state) {
  const found = { model: state.model, on: state.on };
  for (const { name, dataset } of OPTIONS) if (state[name]) found[name] = valued(dataset.option, state[name]);
  return found;
}

/** The plan with the limits of its SLO, for `fit`. */
export function asked(state) {
  const found = plan(state);
  if (state.rate) found.tpot_limit = Number((1 / Number(state.rate)).toPrecision(6));
  if (state.wait) found.ttft_limit = Number(state.wait);
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

/** Prices of several questions; the last one that names a price gives it. */
export const pricesOf = (states, catalogue) => [...new Map(states.flatMap((one) => prices(one, catalogue)).map((one) => [one.slice(0, one.lastIndexOf("=")), one])).values()];

export function partOf(on) {
  const match = /^(\d+)x([^+]+)$/.exec(on || "");
  return match ? { cards: match[1], part: match[2] } : { cards: "", part: on || "" };
}

const titleOf = (name, entries) => entries.find((one) => one.name === name)?.title ?? name;

/** A machine as people name it: "6 × RTX PRO 6000 …", or the title of a host. */
export function machineTitle(on, catalogue) {
  if (on?.includes("+")) return on.split("+").map((one) => machineTitle(one, catalogue)).join(" + ");
  const { cards, part } = partOf(on);
  return `${cards ? `${cards} × ` : ""}${titleOf(part, catalogue.hardware)}`;
}

/** A model as people name it, with the format that was chosen. */
export function modelTitle(state, catalogue) {
  const entry = modelOf(state.model, catalogue);
  if (!entry) return state.model;
  const format = state.weights || state.model.slice(entry.name.length + 1);
  return format ? `${entry.title} ${format}` : entry.title;
}

const quoted = (word) => (/^[\w.:,=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** The same question on the command line. */
export function commandLine(state) {
  const words = ["glmplan", "fit", quoted(state.model), "--on", quoted(state.on)];
  for (const { name, dataset } of OPTIONS) if (state[name]) words.push(`--${name.replaceAll("_", "-")}`, ...(dataset.option === "flag" ? [] : [quoted(String(state[name]))]));
  if (state.users) words.push("--users", Number(state.users) > 1 ? `1,${state.users}` : "1");
  if (state.rate) words.push("--tpot-limit", `${Number((1000 / Number(state.rate)).toPrecision(6))}ms`);
  if (state.wait) words.push("--ttft-limit", `${Number(state.wait)}s`);
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

const combos = { model: combobox(at("model"), "Model"), part: combobox(at("part"), "Accelerator or machine", true) };

/** Fill the form from a state. */
export function show(state, catalogue) {
  const entry = modelOf(state.model, catalogue);
  const name = entry ? entry.name : state.model;
  const format = state.weights || (entry && state.model !== entry.name ? state.model.slice(entry.name.length + 1) : "");
  combos.model.fill(modelChoices(name, catalogue), name);
  const formats = entry ? [...entry.checkpoints].sort((one, other) => entry.bits[other] - entry.bits[one]) : [];
  choose(at("weights"), [["", "the best format that fits"], ...formats.map((one) => [one, one])], format);
  choose(at("kv"), [["", "chosen for you"], ...catalogue.kv_formats.map((one) => [one, one])], state.kv);
  choose(at("engine"), [["", "chosen for you"], ...catalogue.engines.map((one) => [one.name, one.name])], state.engine);
  hardware(state, catalogue);
  for (const one of OPTIONS) if (one.type === "checkbox") one.checked = Boolean(state[one.name]);
  for (const field of ["users", ...SLO, ...OPTIONS.filter((one) => one.tagName === "INPUT" && one.type !== "checkbox").map((one) => one.name), ...PRICES, ...TRAFFIC]) at(field).value = state[field] || (field === "load" ? "rate" : "");
  for (const [id, words] of [["more", "Engine, layout, prices"], ["lengths", "My own lengths"]]) {
    const set = [...at(id).querySelectorAll("input, select")].filter((one) => state[one.name]).length;
    at(id).querySelector("summary").textContent = set ? `${words}: ${set} set` : `${words} …`;
  }
  for (const one of document.querySelectorAll("[data-preset]")) one.setAttribute("aria-pressed", String(one.dataset.preset === presetOf(state)));
}

function hardware(state, catalogue) {
  const { cards, part } = partOf(state.on);
  const entry = catalogue.hardware.find((one) => one.name === part);
  // accelerators of several kinds are an entry of their own
  const mixed = part.includes("+");
  combos.part.fill([...(mixed ? [{ value: part, title: machineTitle(part, catalogue) }] : []), ...machineChoices(catalogue.hardware)], part);
  const whole = mixed || Boolean(entry && entry.kind === "host" && !cards);
  at("cards").disabled = whole;
  at("cards-slot").hidden = whole;
  at("cards").value = mixed ? 1 : whole ? entry.accelerator_count : cards || 1;
}

/** Read the form. */
export function read(catalogue) {
  const state = {};
  const format = at("weights").value;
  const model = at("model").dataset.value;
  const entry = catalogue.models.find((one) => one.name === model);
  // a name with its format is what people write; a format that is none of its checkpoints stays a word of its own
  state.model = format && entry && entry.checkpoints.includes(format) ? `${model}-${format}` : model;
  if (format && state.model === model) state.weights = format;
  const part = catalogue.hardware.find((one) => one.name === at("part").dataset.value);
  const machine = at("part").dataset.value;
  state.on = (part && part.kind === "host") || /^\d+x/.test(machine) ? machine : `${at("cards").value}x${machine}`;
  for (const field of ["users", ...SLO, ...NAMES, ...PRICES, ...(at("amount").value ? TRAFFIC : [])]) {
    const { type, checked, value } = at(field);
    if (field !== "weights" && (type === "checkbox" ? checked : value)) state[field] = type === "checkbox" ? "true" : value;
  }
  return state;
}

/** Faults of the form that need no question: [id of the field, sentence]. */
export function faultOf() {
  const counted = (id, name, most) => {
    const { value, disabled, validity } = at(id);
    if (disabled || (/^\d+$/.test(value) && Number(value) >= 1 && Number(value) <= most)) return null;
    return [id, `${name}: type a whole number from 1 to ${whole(most)}${value || validity.badInput ? "" : "; the field is empty"}.`];
  };
  const above = (id, name) => (at(id).validity.badInput || (at(id).value && !(Number(at(id).value) > 0)) ? [id, `${name}: type a number above 0.`] : null);
  return counted("cards", "Accelerators", 4096) ?? counted("users", "People at once", 4096) ?? above("rate", "Tokens per second") ?? above("wait", "Seconds to the first token");
}
