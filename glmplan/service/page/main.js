// The page: a form whose every change is a question, and an answer that is drawn as it comes.

import { ask, at, el, kept, money, number, Refused, span, time, typed, whole } from "./dom.js";
import { commandLine, fromAddress, MOST, modelOf, NAMES, partOf, plan, prices, read, show, sizeLine, START, toAddress } from "./state.js";
import { drawCurve } from "./curve.js";
import { drawMemory } from "./memory.js";
import { drawLinks } from "./links.js";
import { drawCost } from "./cost.js";
import { drawCompare } from "./compare.js";
import { picture, save } from "./export.js";

const WORDS = { fits: "Fits", tight: "Fits, but tight", does_not_fit: "Does not fit", unknown: "Not known" };
/** The verdict in words; a plan that is short by less than is uncertain of memory says so. */
const wordsOf = (one) => WORDS[one.verdict] + (one.may_start ? ", but may start" : "");
const LIMITS = { kv: "KV pool", tpot: "decode speed", queue: "queueing", hazard: "hazard" };
const MARKS = { fits: "✓", tight: "!", does_not_fit: "✕", unknown: "?" };

let catalogue = null;
let { state, others } = fromAddress();
let answer = null;
let asking = null;

async function begin() {
  catalogue = await ask("v1/catalogue");
  show(state, catalogue);
  await answerIt();
}

/** Ask everything about the state; whatever was asked before no longer counts. */
async function answerIt() {
  asking?.abort();
  delete document.body.dataset.done;
  const mine = (asking = new AbortController());
  const { signal } = mine;
  at("answer").setAttribute("aria-busy", "true");
  history.replaceState(null, "", toAddress(state, others) + location.hash);
  try {
    const users = Number(state.users || START.users);
    answer = await ask("v1/fit", { ...plan(state), users: users === 1 ? [1] : [1, users] }, signal);
    problem(null);
    showAnswer(users);
    at("answer").setAttribute("aria-busy", "false");
    await Promise.allSettled([curve(users, signal), cost(users, signal), links(signal), compare(users, signal)]);
    if (!signal.aborted) document.body.dataset.done = toAddress(state, others);
  } catch (error) {
    if (signal.aborted) return;
    at("answer").setAttribute("aria-busy", "false");
    problem(error);
  }
}

function problem(error) {
  const box = at("problem");
  for (const field of document.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  box.hidden = !error;
  at("brief").hidden = Boolean(error);
  // what stands below answers another question
  at("answer").toggleAttribute("data-refused", Boolean(error));
  box.replaceChildren();
  if (!error) return;
  const wrong = error instanceof Refused ? error.error : { message: "The service does not answer. Is glmplan serve still running?" };
  // a number of users is one of a list, and a machine is named by two fields
  const field = wrong.field === "on" ? (partOf(state.on).cards === "0" ? "cards" : "part") : wrong.field?.split(".")[0];
  const control = field && at(field);
  if (control?.form) control.setAttribute("aria-invalid", "true");
  box.append(el("strong", { text: wrong.message }));
  const instead = (wrong.nearest || []).slice(0, 5);
  if (control && instead.length) box.append(el("div", { class: "row" }, instead.map((value) => el("button", { type: "button", class: "small", text: value, click: () => put(wrong.field, value) }))));
}

function put(field, value) {
  const { cards } = partOf(state.on);
  if (field === "on" && cards && !/^\d+x/.test(value)) value = `${cards}x${value}`;
  state = { ...state, [field]: value };
  show(state, catalogue);
  answerIt();
}

function figure(name, big, unit, sub) {
  return el("div", {}, el("dt", { text: name }), el("dd", {}, el("span", { class: "big" }, big, unit && el("small", { text: ` ${unit}` })), sub && el("span", { class: "sub", text: sub })));
}

function showAnswer(users) {
  const { verdict, question } = answer;
  at("verdict").dataset.verdict = verdict;
  at("verdict-title").replaceChildren(el("span", { "aria-hidden": "true", text: MARKS[verdict] }), ` ${wordsOf(answer)}`);
  at("headline").textContent = [answer.headline, ...answer.reasons].join(". ");
  const one = answer.users.find((row) => row.users === 1);
  const all = answer.users.find((row) => row.users === users);
  const rate = (row) => row?.output_tokens_per_s_per_request;
  const figures = [];
  if (answer.safe) {
    const limit = answer.safe.limits[answer.safe.limit];
    figures.push(figure("Safe users", whole(answer.safe.users), "", `limit: ${LIMITS[answer.safe.limit] ?? answer.safe.limit}${limit?.reason ? ` (${limit.reason})` : ""}`));
  }
  if (rate(one)) figures.push(figure("One user alone", number(rate(one).value), "tok/s", span(rate(one))));
  if (all && users > 1) figures.push(figure(`${whole(users)} users, all together`, number(all.output_tokens_per_s?.value), "tok/s", span(all.output_tokens_per_s)));
  if (all && users > 1 && rate(all)) figures.push(figure("Each of them", number(rate(all).value), "tok/s", span(rate(all))));
  if (all?.ttft_mean_ms) figures.push(figure("First token", time(all.ttft_mean_ms.value), "", `${time(all.ttft_mean_ms.low)} to ${time(all.ttft_mean_ms.high)}`));
  if (answer.context.one_request_tokens) figures.push(figure("Longest request", whole(answer.context.one_request_tokens), "tokens", `the model reads ${whole(answer.context.model_max_tokens)}`));
  // its place is kept, so that nothing below moves when the price comes
  const price = figure("A month", "…", "", "\u00a0");
  price.id = "price-figure";
  at("figures").replaceChildren(...figures, price);
  at("brief").replaceChildren(el("strong", { text: `${MARKS[verdict]} ${wordsOf(answer)}` }), ...[answer.safe && `safe users ${whole(answer.safe.users)}`, all?.output_tokens_per_s && `${number(all.output_tokens_per_s.value)} tok/s together`].filter(Boolean).map((text) => el("span", { text })));
  at("brief").dataset.verdict = verdict;
  at("status").textContent = `${wordsOf(answer)}. ${answer.headline}`;
  document.title = `${question.model} on ${question.on}: ${wordsOf(answer).toLowerCase()} · glmplan`;
  const lacking = answer.verdict !== "does_not_fit" && answer.unknown.length ? `Not known: ${answer.unknown.join("; ")}.` : "No speed is told of a plan that does not fit.";
  drawCurve(at("curve"), at("curve-table"), answer.users, answer.safe?.users, users, lacking);
  drawMemory(at("memory"), answer);
  warnings();
  changes();
  start();
  basis();
}

/** Numbers of users that show the bend: powers of two around what is safe and what is asked. */
function counts(users) {
  const most = Math.max(users, Math.min(4 * (answer.safe?.users || users), 4096), 4);
  const found = new Set([1, users]);
  for (let count = 1; count <= most * 1.5; count *= 2) found.add(count);
  const all = [...found].sort((one, other) => one - other);
  return all.length > 10 ? all.filter((count, place) => count === users || place % 2 === 0) : all;
}

async function curve(users, signal) {
  if (!answer.users.length) return;
  const found = await ask("v1/fit", { ...plan(state), users: counts(users) }, signal);
  drawCurve(at("curve"), at("curve-table"), found.users, answer.safe?.users, users);
}

async function cost(users, signal) {
  const place = at("price-figure");
  try {
    const found = await ask("v1/cost", { ...plan(state), users, price: prices(state, catalogue) }, signal);
    drawCost(at("cost"), found, "", give);
    const way = found.ways?.find((one) => one.usd_month !== null);
    if (way) place.replaceWith(figure(`A month, ${way.paid === "buy" ? "bought" : way.paid.replace("rent", "rented")}`, money(way.usd_month), "", `${money(way.usd_per_million_output_tokens)} for a million answer tokens`));
    else place.remove();
  } catch (error) {
    if (signal.aborted) return;
    place.remove();
    drawCost(at("cost"), null, error.message);
  }
}

/** Bring somebody to the field where a price is given. */
function give(field) {
  at("more").open = true;
  at(field).focus();
}

async function links(signal) {
  const layout = answer.plan;
  if (!layout || answer.verdict === "does_not_fit") return drawLinks(at("links"), null);
  try {
    drawLinks(at("links"), await ask("v1/links", { on: state.on, tp: layout.tp, pp: layout.pp }, signal), layout);
  } catch (error) {
    if (!signal.aborted) at("links").replaceChildren(el("p", { class: "note", text: error.message }));
  }
}

const named = (one) => [one.model, one.weights, "on", one.on, one.engine, one.tp && `TP${one.tp}`, one.pp && `PP${one.pp}`].filter(Boolean).join(" ");

async function compare(users, signal) {
  at("compare").hidden = !others.length;
  if (!others.length) return;
  const all = [...others, state];
  const more = {
    names: all.map(named),
    drop: (place) => { others = others.filter((_, number) => number !== place); answerIt(); },
    open: (place) => { const before = state; state = { ...others[place] }; others = others.map((one, number) => (number === place ? before : one)); show(state, catalogue); answerIt(); },
  };
  const beside = (places) => ask("v1/compare", { plans: places.map((place) => plan(all[place])), users, price: prices(state, catalogue) }, signal).catch((error) => ({ reason: error.message }));
  const fits = (one) => ask("v1/fit", { ...plan(one), users: [users] }, signal).then((found) => !["does_not_fit", "unknown"].includes(found.verdict), () => false);
  let places = [...all.keys()];
  let found = await beside(places);
  const refused = found.reason;
  if (!found.plans && !signal.aborted) {
    // one that does not fit has no speed: the others are compared without it
    const good = await Promise.all(all.map(fits));
    places = places.filter((place) => good[place]);
    found = places.length > 1 && places.length < all.length ? await beside(places) : {};
  }
  if (!signal.aborted) drawCompare(at("compare-body"), found.plans ? found : null, { ...more, places, refused });
}

function warnings() {
  const found = answer.warnings;
  if (!found.length) return at("warnings").replaceChildren(el("p", { class: "note", text: "None is known for this plan." }));
  const order = ["danger", "error", "warning", "slow", "fallback"];
  const rank = (one) => (order.includes(one.severity) ? order.indexOf(one.severity) : order.length);
  const sorted = [...found].sort((one, other) => rank(one) - rank(other));
  const item = (one) => el("li", { class: one.severity }, el("p", {}, el("span", { class: `tag ${one.severity}`, text: one.severity }), el("span", { class: "tag", text: one.kind }), el("strong", { text: one.title })), one.effect && el("p", { text: one.effect }), one.action && el("p", { class: "do", text: `${one.applied ? `${one.applied[0].toUpperCase()}${one.applied.slice(1)}. ` : ""}Do: ${one.action}` }));
  const [first, rest] = [sorted.slice(0, 4), sorted.slice(4)];
  at("warnings").replaceChildren(el("ul", { class: "list" }, first.map(item)), rest.length ? el("details", {}, el("summary", { text: `${rest.length} more` }), el("ul", { class: "list" }, rest.map(item))) : "");
}

function changes() {
  const found = answer.changes;
  if (!found.length && answer.verdict === "does_not_fit") {
    return at("changes").replaceChildren(el("p", { class: "note", text: "No change that was looked at makes it fit. What carries one user, in any format, the cheapest first:" }), el("pre", { tabindex: "0", "aria-label": "Command that finds what fits" }, el("code", {}, typed(sizeLine(answer.question)))));
  }
  if (!found.length) return at("changes").replaceChildren(el("p", { class: "note", text: "Nothing that was looked at." }));
  const item = (one) => {
    const numbers = [one.verdict === "fits" || one.verdict === "tight" ? "" : WORDS[one.verdict].toLowerCase(), one.one_user_tokens_per_s ? `one user ${number(one.one_user_tokens_per_s)} tok/s` : "", one.total_tokens_per_s ? `all together ${number(one.total_tokens_per_s)} tok/s` : "", one.kv_pool_tokens ? `pool ${number(one.kv_pool_tokens)} tokens` : ""].filter(Boolean).join(", ");
    const said = asked(one.options);
    return el("li", {}, el("p", {}, el("strong", { text: one.description }), one.layout ? ` (${one.layout})` : "", ` ${numbers} `, said && el("button", { type: "button", class: "small", text: "Try it", "aria-label": `Try it: ${one.description}`, click: () => { state = folded({ ...state, ...said }); show(state, catalogue); answerIt(); scrollTo({ top: 0 }); } })), one.note && el("p", { class: "do", text: one.note }));
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
function asked(words) {
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
    el("p", { text: answer.basis ? `${answer.evidence}: ${answer.basis}.` : `${answer.evidence}: this model on this accelerator with ${answer.question.engine}.` }),
    answer.unknown.length ? el("p", { text: `Not known: ${answer.unknown.join("; ")}.` }) : "",
    answer.assumed.length ? el("details", { open: true }, el("summary", { text: "Assumed" }), el("ul", {}, answer.assumed.map((text) => el("li", { text })))) : "",
    answer.skipped_layouts.length ? el("details", {}, el("summary", { text: "Layouts that were not evaluated" }), el("ul", {}, answer.skipped_layouts.map((text) => el("li", { text })))) : "",
  );
}

let shown = 0;
function said(text) {
  at("said").textContent = text;
  at("said").classList.add("shown");
  clearTimeout(shown);
  shown = setTimeout(() => at("said").classList.remove("shown"), 6000);
}

async function copy(text, words) {
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

let waiting = 0;
function changed(event) {
  const { id } = event.target;
  // what belongs to one model, part or layout is not carried to another
  if (id === "model") at("weights").value = "";
  if (id === "part") {
    const whole = catalogue.hardware.find((one) => one.name === at("part").value)?.kind === "host";
    if (!whole && at("cards").disabled) at("cards").value = 1;
  }
  if (["model", "part", "cards", "engine"].includes(id)) for (const name of ["tp", "pp", "dp", "ep"]) at(name).value = "";
  const before = toAddress(state, others);
  state = read(catalogue);
  // a field that is left tells once more what its last key told: asking again would redraw what is being clicked
  if (!waiting && toAddress(state, others) === before) return;
  delete document.body.dataset.done;
  if (["model", "part"].includes(id)) show(state, catalogue);
  clearTimeout(waiting);
  waiting = setTimeout(() => { waiting = 0; answerIt(); }, event.type === "change" ? 0 : 350);
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
at("question").addEventListener("change", changed);
at("question").addEventListener("input", (event) => event.target.type === "number" && changed(event));
at("question").addEventListener("submit", (event) => event.preventDefault());
at("question").addEventListener("reset", (event) => {
  event.preventDefault();
  [state, others] = [{ ...START }, []];
  show(state, catalogue);
  answerIt();
});
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
  save("glmplan.png", await picture(`${question.model} ${question.checkpoint} on ${question.on}: ${wordsOf(answer).toLowerCase()}`, [answer.headline, answer.safe ? `safe users: ${answer.safe.users}` : ""], drawings));
});
at("export-xlsx").addEventListener("click", async () => {
  said("The workbook is made …");
  try {
    const found = await ask("v1/workbook", { ...plan(state), users: Number(state.users || START.users), price: prices(state, catalogue) });
    const bytes = Uint8Array.from(atob(found.xlsx), (letter) => letter.charCodeAt(0));
    save("glmplan.xlsx", new Blob([bytes], { type: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet" }));
    said("The workbook is saved.");
  } catch (error) {
    said(error.message);
  }
});

begin().catch(problem);
