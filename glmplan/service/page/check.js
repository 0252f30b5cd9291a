// The page "is my server as fast as predicted": a dropped record, its metrics beside the prediction, and the next step.

import { ask, at, el, number, pageOf, Refused, svg, table, time, typed } from "./dom.js";
import { combobox, machineChoices, modelChoices, modelOf } from "./combo.js";
import { copy, refusal } from "./words.js";

const FACTS = ["model", "accelerator", "accelerator_count", "engine", "weights", "tp"];
const MOST = 240_000;
const VERDICTS = {
  as_predicted: ["yes", "✓", "As fast as predicted"],
  faster: ["likely", "≈", "Faster than predicted"],
  slower: ["unlikely", "!", "Slower than predicted"],
  nothing_compared: ["unknown", "?", "Nothing was compared"],
};
const NAMES = { output_tokens_per_s: "Tokens/s of all", tpot_mean_ms: "TPOT", ttft_mean_ms: "TTFT", itl_mean_ms: "Inter-token latency", e2e_mean_ms: "End-to-end latency", prefill_tokens_per_s: "Prefill tokens/s", kv_pool_tokens: "KV pool, tokens", weights_gib_per_accelerator: "Weights, GiB" };

const given = new URLSearchParams(location.search);
const combos = { model: combobox(at("model"), "Model"), accelerator: combobox(at("accelerator"), "Accelerator"), engine: combobox(at("engine"), "Engine"), weights: combobox(at("weights"), "Weights") };
const fact = (name) => at(name).dataset.value ?? at(name).value;
let catalogue = { models: [], hardware: [], engines: [] };
let file = { name: "", text: "" };
/** The machine of the address, and the facts that it stands for. */
let asked = { on: given.get("on") ?? "", accelerator: "", count: "" };

function begin() {
  const facts = { model: given.get("model"), engine: given.get("engine"), weights: given.get("weights"), tp: given.get("tp") };
  for (const name of FACTS) at(name).value = facts[name] ?? "";
  for (const name of Object.keys(combos)) at(name).dataset.value = at(name).value;
  for (const one of document.querySelectorAll("[data-flow]")) one.href = `${pageOf(one.dataset.flow)}${location.search}`;
  ask("v1/catalogue").then((found) => { catalogue = found; machine(); }).catch(refusal).finally(() => {
    fill();
    command();
    document.body.dataset.done = "true";
  });
}

/** The facts of the machine of the address; one with several kinds of accelerator has none. */
function machine() {
  const [, count, part] = /^(\d+)x([^+]+)$/.exec(asked.on) ?? ["", "", asked.on];
  const entry = catalogue.hardware.find((one) => one.name === part);
  if (!entry) return;
  asked = { ...asked, accelerator: entry.accelerator, count: String(entry.accelerator_count * (count || 1)) };
  at("accelerator").dataset.value = asked.accelerator;
  at("accelerator_count").value = asked.count;
}

/** The lists of facts; the first entry of each leaves the fact to the file. */
function fill() {
  const entry = modelOf(fact("model"), catalogue);
  const formats = entry ? entry.checkpoints : [...new Set(catalogue.models.flatMap((one) => one.checkpoints))].sort();
  const named = (names) => names.map((name) => ({ value: name, title: name }));
  const choices = { model: modelChoices(fact("model"), catalogue), accelerator: machineChoices(catalogue.hardware.filter((one) => one.kind === "accelerator")), engine: named(catalogue.engines.map((one) => one.name)), weights: named(formats) };
  for (const [name, found] of Object.entries(choices)) combos[name].fill([{ value: "", title: "as in the file" }, ...found], fact(name));
}

/** The command that measures the server of the question. */
function command() {
  const users = Number(given.get("users")) || 8;
  const same = fact("accelerator") === asked.accelerator && fact("accelerator_count") === asked.count;
  const on = same && asked.on ? asked.on : fact("accelerator") ? `${fact("accelerator_count") || 1}x${fact("accelerator")}` : "NxACCELERATOR";
  const words = `glmplan validate ${fact("model") || "MODEL"} --url http://MACHINE:8000/v1 --on ${on} --users ${users > 1 ? `1,${users}` : 1} --input ${given.get("input") || 2048} --output ${given.get("output") || 512} --out acceptance`;
  at("command").replaceChildren(...typed(words));
}

async function taken(one) {
  const text = await one.text();
  // of a long log the head has the settings and the tail the result
  at("text").value = "";
  file = { name: one.name, text: text.length > MOST ? `${text.slice(0, MOST / 2)}\n${text.slice(-MOST / 2)}` : text };
  await compare();
}

async function compare() {
  const text = at("text").value.trim() ? at("text").value : file.text;
  if (!text) return refusal(new Refused({ field: "file", message: "Choose a file, or paste its text." }, 0));
  const facts = Object.fromEntries(FACTS.filter(fact).map((name) => [name, ["accelerator_count", "tp"].includes(name) ? Number(fact(name)) : fact(name)]));
  delete document.body.dataset.done;
  try {
    const found = await ask("v1/check", { text, name: file.name, facts });
    refusal(null);
    draw(found);
  } catch (error) {
    refusal(error);
  }
  document.body.dataset.done = "true";
}

const written = (metric, value) => (metric.endsWith("_ms") ? time(value) : number(value));

/** A predicted interval as a bar, and the measured value as a mark. */
function bar(one) {
  const [low, high] = [one.low ?? one.predicted * 0.9, one.high ?? one.predicted * 1.1];
  const [least, most] = [Math.min(low, one.measured) / 1.2, Math.max(high, one.measured) * 1.2];
  const x = (value) => `${((100 * Math.log(value / least)) / Math.log(most / least)).toFixed(2)}%`;
  const wide = `${((100 * Math.log(high / low)) / Math.log(most / least)).toFixed(2)}%`;
  return svg("svg", { class: "range", height: 18, role: "img", "aria-label": one.inside ? "inside the interval" : "outside the interval" }, svg("rect", { x: 0, y: 4, width: "100%", height: 10, class: "track" }), svg("rect", { x: x(low), y: 4, width: wide, height: 10, class: "band" }), svg("line", { x1: x(one.predicted), x2: x(one.predicted), y1: 3, y2: 15, class: "whisker" }), svg("circle", { cx: x(one.measured), cy: 9, r: 5, class: "measured" }));
}

function draw(found) {
  const [look, mark, words] = VERDICTS[found.verdict];
  const { figures } = found;
  at("verdict").hidden = false;
  at("verdict").dataset.verdict = look;
  at("verdict-title").textContent = `${mark} ${words}`;
  at("headline").textContent = `Read: ${at("text").value.trim() || !file.name ? "" : `${file.name}, `}${found.kind}, ${found.runs} ${found.runs === 1 ? "run" : "runs"}. ${figures.length ? `${figures.length - found.outside} of ${figures.length} metrics lie inside the 90 % interval${found.verdict === "as_predicted" && found.outside ? ", and so many misses are within chance" : ""}.` : "No metric has both a measurement and a prediction."}`;
  const calibrate = `glmplan calibrate --from ${/^[\w.-]+$/.test(file.name || "FILE") ? file.name || "FILE" : `'${file.name}'`} --save my-site`;
  const steps = !figures.length ? [] : [el("div", {}, el("h3", { text: "Calibrate with this" }), el("p", {}, "Later answers of your site are narrower: ", el("code", {}, typed(calibrate)), " ", el("button", { type: "button", class: "link", text: "Copy command", click: () => copy(calibrate, "The command is copied.") })))];
  if (found.causes.length) steps.push(el("div", {}, el("h3", { text: "Likely causes" }), el("ol", {}, found.causes.map((one) => el("li", {}, el("b", { text: one.what }), `: ${one.evidence}. Try: ${one.to_try}.`)))));
  else if (found.verdict === "slower") steps.push(el("div", {}, el("h3", { text: "Likely causes" }), el("p", { text: "This file has no facts of the server. A record of glmplan validate names causes: clocks, KV pool, preemption, the client itself." })));
  if (found.problems.length) steps.push(el("div", {}, el("h3", { text: "Not compared" }), el("ul", {}, found.problems.map((text) => el("li", { text })))));
  at("next").replaceChildren(...steps);
  at("figures-card").hidden = !figures.length;
  const columns = [
    ["Run", "run"],
    ["People", (one) => number(one.level), true],
    ["Metric", (one) => NAMES[one.metric] ?? one.metric],
    ["Measured", (one) => written(one.metric, one.measured), true],
    ["Predicted", (one) => `${written(one.metric, one.predicted)}${one.low ? ` (${written(one.metric, one.low)} to ${written(one.metric, one.high)})` : ""}`, true],
    ["Predicted / measured", (one) => `${one.difference > 0 ? "+" : ""}${Math.round(100 * one.difference)} %`, true],
    ["Interval, and ● measured", bar],
    ["", (one) => el("span", { class: `tag ${one.inside ? "good" : "bad"}`, text: one.inside ? "inside" : "outside" })],
  ];
  at("figures").replaceChildren(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Measured and predicted, table" }, table(figures, columns, { caption: "Metrics measured and predicted" })));
  at("verdict").scrollIntoView({ block: "nearest" });
}

at("file").addEventListener("change", () => at("file").files[0] && taken(at("file").files[0]));
for (const name of ["dragover", "dragleave", "drop"]) at("drop").addEventListener(name, (event) => {
  event.preventDefault();
  at("drop").classList.toggle("over", name === "dragover");
  if (name === "drop" && event.dataTransfer.files[0]) taken(event.dataTransfer.files[0]);
});
at("check").addEventListener("submit", (event) => { event.preventDefault(); compare(); });
for (const name of ["input", "change"]) at("check").addEventListener(name, command);
at("model").addEventListener("change", fill);
at("copy").addEventListener("click", () => copy(at("command").textContent, "The command is copied."));
addEventListener("token", begin);
begin();
