// The page "will it fit, how fast": a sentence whose every change is a question, and an answer that is drawn as it comes.

import { ask, at, el, number, pageOf, Refused, typed } from "./dom.js";
import { modelOf } from "./combo.js";
import { asked, commandLine, fromAddress, faultOf, machineTitle, MOST, modelTitle, NAMES, partOf, prices, pricesOf, read, show, sizeLine, START, toAddress, withPreset } from "./state.js";
import { drawCurve } from "./curve.js";
import { drawMemory } from "./memory.js";
import { drawLinks } from "./links.js";
import { drawCost } from "./cost.js";
import { arithmeticOf } from "./arithmetic.js";
import { drawCompare } from "./compare.js";
import { loadOf, showLoad } from "./load.js";
import { drawTraffic } from "./traffic.js";
import { drawFormats } from "./formats.js";
import { drawCheaper, drawFigures, drawVerdict, limitWords, priceFigure, verdictWords } from "./verdict.js";
import { openNamedTab, openTab } from "./tabs.js";
import { picture, save } from "./export.js";
import { copy, explainTerms, glossed, nameOf, plain, refusal, said } from "./words.js";

let catalogue = null;
let { state, others } = fromAddress();
let answer = null;
let asking = null;
let sums = null;

async function begin() {
  catalogue = await ask("v1/catalogue");
  show(state, catalogue);
  explainTerms();
  const named = openNamedTab();
  await answerIt();
  if (named) document.querySelector("section.tabs").scrollIntoView();
}

/** Put the question into the address: each committed change is a step that Back undoes. */
function remember() {
  const address = toAddress(state, others);
  const bare = !location.search;
  if (address === location.pathname + location.search) return;
  history[bare ? "replaceState" : "pushState"](null, "", address + location.hash);
}

/** Ask everything about the state; whatever was asked before no longer counts. */
async function answerIt() {
  asking?.abort();
  delete document.body.dataset.done;
  const fault = faultOf();
  if (fault) return problem(new Refused({ field: fault[0], message: fault[1] }, 0));
  const mine = (asking = new AbortController());
  const { signal } = mine;
  at("answer").setAttribute("aria-busy", "true");
  remember();
  try {
    const users = Number(state.users || START.users);
    answer = await ask("v1/fit", { ...asked(state), users: users === 1 ? [1] : [1, users] }, signal);
    problem(null);
    showAnswer(users);
    at("answer").setAttribute("aria-busy", "false");
    await Promise.allSettled([curve(users, signal), cost(users, signal), links(signal), compare(users, signal)]);
    if (signal.aborted) return;
    document.body.dataset.done = toAddress(state, others);
    drawFormats(answer, state, catalogue, users, signal, take);
    if (!at("arithmetic").hidden) arithmetic();
    if (!at("traffic").hidden) traffic();
  } catch (error) {
    if (signal.aborted) return;
    at("answer").setAttribute("aria-busy", "false");
    problem(error);
  }
}

function problem(error) {
  // a machine is named by two fields
  const fields = { tpot_limit: "rate", ttft_limit: "wait", on: partOf(state.on).cards === "0" ? "cards" : "part" };
  const { control, wrong } = refusal(error, (name) => fields[name] ?? name);
  if (!error) return;
  for (let node = control?.parentElement; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  const instead = (wrong.nearest || []).slice(0, 5);
  if (control && instead.length) at("problem").append(el("div", { class: "row" }, instead.map((value) => el("button", { type: "button", class: "small", text: value, click: () => put(wrong.field, value) }))));
}

function put(field, value) {
  const { cards } = partOf(state.on);
  if (field === "on" && cards && !/^\d+x/.test(value)) value = `${cards}x${value}`;
  take({ [field]: value });
}

/** The next question without the prices of another machine or model. */
function ownPrices(next) {
  const kind = (one) => [one.on, partOf(one.on).part, modelOf(one.model, catalogue)?.name];
  const [same, before] = [kind(next), kind(state)].map((one) => [one[0], one[1], one[2], one[2]]);
  const others = ["buy", "rent", "api_in", "api_out"].filter((name, place) => next[name] && next[name] === state[name] && same[place] !== before[place]);
  if (others.length) said(`Removed, as it was given for another ${others.includes("buy") || others.includes("rent") ? "machine" : "model"}: ${others.map((name) => nameOf(name)).join("; ")}.`);
  for (const name of others) at(name).value = "";
  return Object.fromEntries(Object.entries(next).filter(([name]) => !others.includes(name)));
}

/** Change fields of the question, and ask it. */
function take(fields) {
  state = ownPrices(folded({ ...state, ...fields }));
  show(state, catalogue);
  answerIt();
}

function showAnswer(users) {
  const { question } = answer;
  const flows = Object.fromEntries([...document.querySelectorAll("[data-flow]")].map((one) => [one.dataset.flow, `${pageOf(one.dataset.flow)}${toAddress(state).slice(location.pathname.length)}`]));
  for (const one of document.querySelectorAll("[data-flow]")) one.href = flows[one.dataset.flow];
  const tried = (options) => { const fields = askedBy(options); return fields && (() => { take(fields); scrollTo({ top: 0 }); }); };
  drawVerdict(answer, users, { flows, take: tried, copy: (text) => copy(text, "The command is copied.") });
  sums = arithmeticOf(state, users);
  drawFigures(answer, users, sums);
  at("figures-title").textContent = users === 1 ? "For one person" : `At ${users} people`;
  for (const [name, limit] of [["rate", answer.safe && 1000 / answer.safe.target_tpot_ms], ["wait", answer.safe?.target_ttft_ms / 1000]]) if (limit) at(name).placeholder = String(Number(limit.toPrecision(3)));
  document.title = `${modelTitle({ ...state, weights: question.checkpoint, model: question.model }, catalogue)} on ${machineTitle(state.on, catalogue)}: ${verdictWords(answer).toLowerCase()} · glmplan`;
  const lacking = answer.verdict !== "does_not_fit" && answer.unknown.length ? `Not known: ${answer.unknown.join("; ")}.` : "No speed is told of a plan that does not load.";
  drawCurve(at("curve"), at("curve-table"), answer.users, answer.safe, users, lacking);
  drawMemory(at("memory"), answer);
  at("formats").replaceChildren(el("p", { class: "note", text: "…" }));
  warnings();
  changes();
  start();
  basis();
}

/** Concurrencies that show the bend: powers of two around the safe load, the same for every number of users below it. */
function counts(users) {
  const most = Math.max(users, Math.min(2 * (answer.safe?.expected || users), 4096), 4);
  const found = [];
  for (let count = 1; count <= most * 1.5; count *= 2) found.push(count);
  return found.length > 10 ? found.filter((_, place) => place % 2 === 0) : found;
}

async function curve(users, signal) {
  if (!answer.users.length) return;
  const found = await ask("v1/fit", { ...asked(state), users: counts(users), weights: answer.question.checkpoint, model: answer.question.model, changes: false }, signal);
  const own = answer.users.filter((row) => row.users === users);
  const rows = [...found.users.filter((row) => row.users !== users), ...own].sort((one, other) => one.users - other.users);
  drawCurve(at("curve"), at("curve-table"), rows, answer.safe, users);
}

/** The plan of the answer with its format, for questions that choose none. */
const settled = () => ({ ...asked(state), ...(answer.plan ? { model: answer.question.model, weights: answer.question.checkpoint } : {}) });

async function cost(users, signal) {
  let found = null;
  try {
    found = await ask("v1/cost", { ...settled(), users, price: prices(state, catalogue) }, signal);
    drawCost(at("cost"), found, "", give);
  } catch (error) {
    if (signal.aborted) return;
    drawCost(at("cost"), null, plain(error.message));
  }
  priceFigure(found);
  drawCheaper(found, () => { openTab("cost"); at("tab-cost").focus(); });
}

/** Open the field where a price is given. */
function give(field) {
  at("more").open = true;
  at(field).focus();
}

async function links(signal) {
  const layout = answer.plan;
  if (!layout || answer.verdict === "does_not_fit") return drawLinks(at("links"), null);
  try {
    drawLinks(at("links"), await ask("v1/links", { on: state.on, tp: layout.tp, pp: layout.pp }, signal), layout, answer.users.at(-1));
  } catch (error) {
    if (!signal.aborted) at("links").replaceChildren(el("p", { class: "note", text: plain(error.message) }));
  }
}

async function arithmetic() {
  at("arithmetic").replaceChildren(el("p", { class: "note", text: "…" }));
  at("arithmetic").replaceChildren(await sums().catch((error) => el("p", { class: "note", text: plain(error.message) })));
}
document.addEventListener("tab", ({ detail }) => answer && { arithmetic, traffic }[detail]?.());

/** Simulate the plan and its improvements under the traffic of the question. */
async function traffic() {
  showLoad();
  const { signal } = asking;
  at("runs").replaceChildren(el("p", { class: "note", text: state.amount ? "…" : "Type a load: the plan and its improvements are simulated under it." }));
  if (!state.amount) return;
  try {
    const { users, ...load } = loadOf("amount");
    drawTraffic(at("runs"), await ask("v1/fit", { ...settled(), ...(users ? { traffic: `closed:${users}` } : {}), ...load }, signal));
  } catch (error) {
    if (signal.aborted) return;
    at("runs").replaceChildren(el("p", { role: "alert", text: plain(error.message) }));
  }
}

const named = (one) => [one.model, one.weights, "on", one.on, one.engine, one.tp && `TP${one.tp}`, one.pp && `PP${one.pp}`].filter(Boolean).join(" ");

async function compare(users, signal) {
  at("compare").hidden = !others.length;
  if (!others.length) return;
  // all plans are judged by the limits of this question
  const all = [...others, state].map((one) => ({ ...one, rate: state.rate, wait: state.wait }));
  const price = pricesOf(all, catalogue);
  const more = {
    names: all.map(named),
    limits: answer.safe ? `, limits of ${limitWords(answer.safe)}` : "",
    parts: all.map((one) => ({ sums: arithmeticOf(one, users), costs: () => ask("v1/cost", { ...asked(one), users, price, ...(found.rent_term ? { rent_term: found.rent_term } : {}) }) })),
    drop: (place) => { others = others.filter((_, number) => number !== place); answerIt(); },
    open: (place) => { const before = state; state = { ...others[place] }; others = others.map((one, number) => (number === place ? before : one)); show(state, catalogue); answerIt(); },
  };
  const found = await ask("v1/compare", { plans: all.map(asked), users, price }, signal).catch((error) => ({ reason: error.message }));
  // one that does not fit has no speed: the others are compared without it
  const without = found.left_out ?? [];
  const places = [...all.keys()].filter((place) => !without.some((one) => one.place === place));
  const refused = [found.reason, ...without.map((one) => `${one.plan}: ${one.reason}`)].filter(Boolean).join(". ");
  if (!signal.aborted) drawCompare(at("compare-body"), found.plans ? found : null, { ...more, places, refused });
}

function warnings() {
  const found = answer.warnings;
  if (!found.length) return at("warnings").replaceChildren(el("p", { class: "note", text: "None is known for this plan." }));
  const order = ["danger", "error", "warning", "slow", "fallback"];
  const rank = (one) => (order.includes(one.severity) ? order.indexOf(one.severity) : order.length);
  const sorted = [...found].sort((one, other) => rank(one) - rank(other));
  const item = (one) => el("li", { class: one.severity }, el("p", {}, el("span", { class: `tag ${one.severity}`, text: one.severity }), el("span", { class: "tag", text: one.kind }), el("strong", { text: one.title })), one.effect && el("p", {}, glossed(one.effect)), one.action && el("p", { class: "do", text: `${one.applied ? `${one.applied[0].toUpperCase()}${one.applied.slice(1)}. ` : ""}Do: ${one.action}` }));
  const [first, rest] = [sorted.slice(0, 4), sorted.slice(4)];
  at("warnings").replaceChildren(el("ul", { class: "list" }, first.map(item)), rest.length ? el("details", {}, el("summary", { text: `${rest.length} more` }), el("ul", { class: "list" }, rest.map(item))) : "");
}

function changes() {
  const found = answer.changes;
  if (!found.length && answer.verdict === "does_not_fit") {
    return at("changes").replaceChildren(el("p", { class: "note", text: "No change that was evaluated makes it load. The cheapest machine for one user, in any format:" }), el("pre", { tabindex: "0", "aria-label": "Command that finds a machine" }, el("code", {}, typed(sizeLine(answer.question)))));
  }
  if (!found.length) return at("changes").replaceChildren(el("p", { class: "note", text: "No change that was evaluated improves it." }));
  const words = { unknown: "not known", does_not_fit: "does not load" };
  const item = (one) => {
    const numbers = [words[one.verdict] ?? "", one.one_user_tokens_per_s ? `one user ${number(one.one_user_tokens_per_s)} tok/s` : "", one.total_tokens_per_s ? `all together ${number(one.total_tokens_per_s)} tok/s` : "", one.kv_pool_tokens ? `pool ${number(one.kv_pool_tokens)} tokens` : ""].filter(Boolean).join(", ");
    const fields = askedBy(one.options);
    return el("li", {}, el("p", {}, el("strong", { text: one.description }), one.layout ? ` (${one.layout})` : "", ` ${numbers} `, fields && el("button", { type: "button", class: "small", text: "Try it", "aria-label": `Try it: ${one.description}`, click: () => { take(fields); scrollTo({ top: 0 }); } })), one.note && el("p", { class: "do", text: one.note }));
  };
  const [first, rest] = [found.slice(0, 5), found.slice(5)];
  at("changes").replaceChildren(el("ul", { class: "list" }, first.map(item)), rest.length ? el("details", {}, el("summary", { text: `${rest.length} more` }), el("ul", { class: "list" }, rest.map(item))) : "");
}

/** A format that is chosen takes the place of the one in the model's name. */
function folded(next) {
  const entry = modelOf(next.model, catalogue);
  return entry && entry.checkpoints.includes(next.weights) ? { ...next, model: `${entry.name}-${next.weights}`, weights: "" } : next;
}

/** Options of the command line as fields of the form; null where one of them is not in it. */
function askedBy(words) {
  // another model is asked for by its name alone
  if (/^[\w.-]+$/.test(words || "") && modelOf(words, catalogue)) return { model: words, weights: "" };
  const given = [...(words || "").matchAll(/--([\w-]+)[ =](\S+)/g)];
  const known = ["on", ...NAMES].map((name) => name.replaceAll("_", "-"));
  return given.length && given.every(([, name]) => known.includes(name)) ? Object.fromEntries(given.map(([, name, value]) => [name.replaceAll("-", "_"), value.replaceAll("'", "")])) : null;
}

function start() {
  const lines = [];
  if (answer.command) lines.push(el("pre", { tabindex: "0", "aria-label": "Command that starts the engine" }, el("code", {}, typed(answer.command))));
  for (const note of answer.command_notes) lines.push(el("p", { class: "note", text: note }));
  lines.push(el("h3", { text: "The same question on the command line" }), el("pre", { tabindex: "0", "aria-label": "The same question on the command line" }, el("code", { id: "command-line" }, typed(commandLine(state)))));
  at("start").replaceChildren(...lines);
}

function basis() {
  at("basis").replaceChildren(
    el("p", {}, glossed(`Evidence level: ${answer.evidence}; ${answer.basis || `this model on this accelerator with ${answer.question.engine}`}.`)),
    answer.unknown.length ? el("p", { text: `Not known: ${answer.unknown.join("; ")}.` }) : "",
    answer.assumed.length ? el("details", { open: true }, el("summary", { text: "Assumed" }), el("ul", {}, answer.assumed.map((text) => el("li", { text })))) : "",
    answer.skipped_layouts.length ? el("details", {}, el("summary", { text: "Layouts that were not evaluated" }), el("ul", {}, answer.skipped_layouts.map((text) => el("li", { text })))) : "",
  );
}

let waiting = 0;
function changed(event) {
  const { id } = event.target;
  // settings of one model, accelerator or layout are not carried to another
  if (id === "model" && modelOf(state.model, catalogue)?.name !== at("model").dataset.value) at("weights").value = "";
  if (id === "part") {
    const machine = at("part").dataset.value;
    const whole = /^\d+x/.test(machine) || catalogue.hardware.find((one) => one.name === machine)?.kind === "host";
    if (!whole && at("cards").disabled) [at("cards").value, at("cards").disabled] = [1, false];
  }
  if (["cards", "engine"].includes(id) || (id === "model" && at("weights").value === "") || (id === "part" && at("part").dataset.value !== partOf(state.on).part)) for (const name of ["tp", "pp", "dp", "ep"]) at(name).value = "";
  const before = toAddress(state, others);
  const fault = faultOf();
  if (fault) {
    clearTimeout(waiting);
    waiting = 0;
    asking?.abort();
    delete document.body.dataset.done;
    return problem(new Refused({ field: fault[0], message: fault[1] }, 0));
  }
  state = ownPrices(read(catalogue));
  // a field that is left repeats its last key: asking again would redraw the button that is being clicked
  if (!waiting && toAddress(state, others) === before && at("problem").hidden) return;
  delete document.body.dataset.done;
  if (event.type === "change") show(state, catalogue);
  clearTimeout(waiting);
  waiting = setTimeout(() => { waiting = 0; answerIt(); }, event.type === "change" ? 0 : 350);
}

at("question").addEventListener("change", changed);
at("question").addEventListener("input", (event) => event.target.type === "number" && changed(event));
at("question").addEventListener("submit", (event) => event.preventDefault());
at("load").addEventListener("change", showLoad);
at("traffic-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state = read(catalogue);
  answerIt();
});
at("question").addEventListener("reset", (event) => {
  event.preventDefault();
  [state, others] = [{ ...START }, []];
  show(state, catalogue);
  answerIt();
});
for (const one of document.querySelectorAll("[data-preset]")) one.addEventListener("click", () => {
  state = withPreset(state, one.dataset.preset);
  show(state, catalogue);
  answerIt();
});
addEventListener("popstate", () => {
  ({ state, others } = fromAddress());
  show(state, catalogue);
  answerIt();
});
addEventListener("token", () => begin().catch(problem));
at("add").addEventListener("click", () => {
  if (others.length >= MOST - 1) return said("Four plans are compared at most: remove one first.");
  others = [...others, { ...state }];
  answerIt().then(() => at("compare").scrollIntoView({ block: "nearest" }));
});
at("link").addEventListener("click", () => copy(new URL(toAddress(state, others), location.href).href, "The link is copied."));
at("export-command").addEventListener("click", () => copy(commandLine(state), "The command line is copied."));
at("export-json").addEventListener("click", () => save("glmplan.json", JSON.stringify(answer, null, 2), "application/json"));
at("export-png").addEventListener("click", async () => {
  const { question } = answer;
  const drawings = [...document.querySelectorAll("#curve svg, #even svg, #memory svg, #links svg")];
  save("glmplan.png", await picture(`${question.model} ${question.checkpoint} on ${question.on}: ${verdictWords(answer).toLowerCase()}`, [answer.headline, answer.safe ? `safe users: ${answer.safe.users}` : ""], drawings));
});
at("export-xlsx").addEventListener("click", async () => {
  said("The workbook is made …");
  try {
    const found = await ask("v1/workbook", { ...settled(), users: Number(state.users || START.users), price: prices(state, catalogue) });
    const bytes = Uint8Array.from(atob(found.xlsx), (letter) => letter.charCodeAt(0));
    save("glmplan.xlsx", new Blob([bytes], { type: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet" }));
    said("The workbook is saved.");
  } catch (error) {
    said(plain(error.message));
  }
});

begin().catch(problem);
