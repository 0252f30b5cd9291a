// The page "what should I buy": the search as a job with progress, its options as a chart and a table.

import { ask, at, el, money, number, pageOf, Refused, svg, table, time, whole } from "./dom.js";
import { combobox, machineChoices, modelChoices } from "./combo.js";
import { assumedLines, copy, explainTerms, inForm, LEVELS, opens, refusal, sumLine } from "./words.js";
import { save } from "./export.js";
import { LOAD, loadOf, showLoad, shownAs } from "./load.js";

const FIELDS = [...LOAD, "rate", "wait", "kind", "input", "output", "budget", "price", "rates", "power", "probability"];
const MOST_PINS = 4;
/** As `FEW_BITS` of glmplan.planner.formats. */
const FEW_BITS = 4;
const model = combobox(at("model"), "Model");
/** Lists of names that are chosen one by one: entries, chosen ones, words for none. */
const LISTS = {
  only: { combo: combobox(at("only"), "Only these machines"), all: [], chosen: [], none: "all" },
  also: { combo: combobox(at("also"), "Other models, compared"), all: [], chosen: [], none: "none" },
};
let answers = [];
let found = null;
let job = null;
let pins = [];
let titles = new Map();

async function begin() {
  const given = new URLSearchParams(location.search);
  for (const name of FIELDS) if (given.get(name)) at(name).value = given.get(name);
  at("load").value ||= "people";
  at("users").value = given.get(amount()) || "8";
  at("kind").value ||= "any";
  at("probability").value ||= "0.95";
  flows();
  shownLoad();
  const catalogue = await ask("v1/catalogue");
  LISTS.only.all = machineChoices(catalogue.hardware);
  LISTS.also.all = modelChoices("", catalogue);
  titles = new Map([...LISTS.only.all, ...LISTS.also.all].map((one) => [one.value, one.title]));
  const asked = given.get("model") || "glm-5.1";
  model.fill(modelChoices(asked, catalogue), asked);
  const names = (text) => (text || "").split(",").map((one) => one.trim()).filter(Boolean);
  choose("also", names(given.get("also")));
  // a site without a server has searched these machines
  choose("only", names(given.get("only") || window.glmplanAnswers?.["v1/size"]?.[0][0].only));
  document.body.dataset.done = "true";
}

/** Name of the number in the address: people are those of the other pages. */
const amount = () => (at("load").value === "people" ? "users" : "amount");

function shownLoad() {
  showLoad();
  const sessions = at("load").value === "sessions";
  [at("input").placeholder, at("output").placeholder] = sessions ? ["1024", "a quarter"] : ["2048", "512"];
}

function flows() {
  for (const one of document.querySelectorAll("[data-flow]")) one.href = `${pageOf(one.dataset.flow)}${location.search}`;
}

/** Choose names of a list; each is a button that takes it out again. */
function choose(list, names) {
  const { combo, all, none } = LISTS[list];
  const chosen = (LISTS[list].chosen = [...new Set(names)].sort());
  combo.fill(all.filter((one) => !chosen.includes(one.value)), "");
  at(list).placeholder = chosen.length ? "add another" : none;
  const without = (name) => () => { choose(list, chosen.filter((one) => one !== name)); at(list).focus(); };
  at(`${list}-chosen`).replaceChildren(...chosen.map((name) => el("li", {}, el("button", { type: "button", class: "small", "aria-label": `Remove ${titles.get(name) ?? name}`, text: `${titles.get(name) ?? name} ✕`, click: without(name) }))));
}

/** The question as the service takes it, and as the address has it. */
function question() {
  const text = Object.fromEntries(FIELDS.map((name) => [name, at(name).value.trim()]));
  const load = loadOf("users");
  for (const [name, words] of [["rate", "Tokens per second"], ["wait", "Seconds to the first token"]]) if (text[name] && !(Number(text[name]) > 0)) throw new Refused({ field: name, message: `${words}: type a number above 0.` }, 0);
  const slo = `tpot mean < ${Number((1000 / Number(text.rate || 10)).toPrecision(6))} ms, ttft mean < ${Number(text.wait || 10)} s`;
  const models = [...new Set([at("model").dataset.value, ...LISTS.also.chosen])];
  const asked = { model: models.length > 1 ? models : models[0], ...load, slo, kind: text.kind || "any", probability: Number(text.probability), answers: load.traffic ? 5 : 20 };
  for (const name of ["input", "output"]) if (text[name]) asked[name] = Number(text[name]);
  if (LISTS.only.chosen.length) asked.only = LISTS.only.chosen.join(",");
  for (const name of ["budget", "power"]) if (text[name]) asked[name] = text[name];
  for (const name of ["price", "rates"]) if (text[name]) asked[name] = text[name].split(/[,;\s]+/);
  const address = new URLSearchParams({ model: models[0] });
  address.set(amount(), at("users").value);
  for (const name of FIELDS) if (text[name] && text[name] !== "people") address.set(name, text[name]);
  for (const [name, { chosen }] of Object.entries(LISTS)) if (chosen.length) address.set(name, chosen.join(","));
  return { asked, address: `${location.pathname}?${address}` };
}

async function search() {
  let wanted;
  try {
    wanted = question();
  } catch (error) {
    return refusal(error);
  }
  refusal(null);
  if (wanted.address !== location.pathname + location.search) history.pushState(null, "", wanted.address);
  flows();
  await stop();
  delete document.body.dataset.done;
  try {
    const answer = window.glmplanAnswers ? await ask("v1/size", wanted.asked) : await searched(wanted.asked);
    if (!answer) return;
    answers = (answer.models ?? [answer]).map((one) => [one, one.options[0]]).sort(([, one], [, other]) => (other?.slo_met ?? 0) - (one?.slo_met ?? 0) || (one?.usd_month || Infinity) - (other?.usd_month || Infinity)).map(([one]) => one);
    show(answers[0]);
  } catch (error) {
    job = null;
    refusal(error, shownAs("users"));
  } finally {
    running(Boolean(job));
    document.body.dataset.done = "true";
  }
}

/** Search as a job; nothing where it was cancelled. */
async function searched(question) {
  const begun = await ask("v1/jobs", { ask: "size", question });
  job = begun.job;
  running(true);
  const ended = await followed(begun.job);
  if (ended === "cancelled" || job !== begun.job) return null;
  job = null;
  return ask(`v1/jobs/${begun.job}/answer`);
}

/** Look at a job until it ends; its last state. */
async function followed(name) {
  for (;;) {
    const now = await ask(`v1/jobs/${name}`);
    const { progress, state } = now;
    const bar = at("bar");
    if (progress) [bar.max, bar.value] = [progress.total, progress.done];
    else bar.removeAttribute("value");
    const place = now.place ? `place ${now.place} in the queue, ` : "";
    at("progress-words").textContent = `${state}, ${place}${progress ? `${whole(progress.done)} of ${whole(progress.total)} steps, ` : ""}${Math.round(now.seconds)} s`;
    if (!["waiting", "running"].includes(state)) return state;
    await new Promise((done) => setTimeout(done, 700));
    if (job !== name) return "cancelled";
  }
}

async function stop() {
  if (!job) return;
  const name = job;
  job = null;
  await fetch(`v1/jobs/${name}`, { method: "DELETE" }).catch(() => {});
  running(false);
}

function running(on) {
  at("progress").hidden = !on;
  at("cancel").hidden = !on;
  at("go").disabled = on;
}

const capacity = (one, { unit } = found) => one[`capacity_${unit.replace("/", "_per_")}`] ?? 0;
/** A machine as people name it: "4 × RTX 5090", "2 servers of 8 × H200". */
function named(one) {
  const [, count, part] = /^(\d+)x(.+)$/.exec(one.machine) ?? ["", "", one.machine];
  return `${one.machines > 1 ? `${one.machines} servers of ` : ""}${count ? `${count} × ` : ""}${titles.get(part) ?? part}`;
}
const keyOf = (one) => [one.role, one.rank, one.machine, one.paid].join("|");
const words = (level) => LEVELS[level] ?? level;

function shown() {
  const [paid, evidence, word] = [at("paid").value, at("evidence").value, at("word").value.trim().toLowerCase()];
  return found.options.filter((one) => (!paid || one.paid.startsWith(paid)) && (!evidence || one.evidence_level === evidence) && (!word || `${one.machine} ${named(one)}`.toLowerCase().includes(word)));
}

/** Show the machines of one model. */
function show(answer) {
  found = answer;
  pins = [];
  at("models-card").hidden = answers.length < 2;
  const pick = (one) => el("button", { type: "button", class: "link", "aria-pressed": String(one === found), text: titles.get(one.model) ?? one.model, click: () => { show(one); at("models").querySelector("[aria-pressed=true]").focus(); } });
  const first = (write) => (one) => (one.options.length ? write(one.options[0], one) : "none");
  const columns = [
    ["Model", pick],
    ["Machine", first(named)],
    ["Format", first((row) => row.weights)],
    ["Paid", first((row) => row.paid)],
    ["A month", first((row) => money(row.usd_month)), true],
    ["Probability", first((row) => `${Math.floor(100 * row.probability)} %`), true],
    ["Carries", first((row, one) => `${number(capacity(row, one))} ${one.unit}`), true],
  ];
  at("models").replaceChildren(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Models, table" }, table(answers, columns, { caption: "First machine of each model, the cheapest first", here: (one) => one === found })));
  draw();
}

function draw() {
  const { options } = found;
  const skipped = Object.entries(found.skipped).map(([why, count]) => [inForm(why), count]);
  const best = options.find((one) => one.role === "answer");
  at("verdict").hidden = false;
  at("verdict").dataset.verdict = best ? "yes" : "unlikely";
  at("verdict-title").textContent = `${answers.length > 1 ? `${titles.get(found.model) ?? found.model}: ` : ""}${best ? `${named(best)}, ${best.weights}` : "No priced machine meets this SLO"}`;
  const api = found.per_token;
  at("headline").textContent = best ? `${money(best.usd_month)} a month ${best.paid === "buy" ? "bought" : "rented"}; it meets the SLO for ${found.load.toLocaleString("en")} ${found.unit} with ${Math.floor(100 * best.probability)} % probability and carries ${number(capacity(best))}.${best.bits_per_weight < FEW_BITS ? ` The format has ${number(best.bits_per_weight)} bits for each weight; its losses are not modelled.` : ""}${api ? ` An API costs ${money(api.usd_month)} a month for the same tokens (${api.seller}); its latency is not guaranteed.` : ""}` : `${skipped.length ? `Left out: ${skipped.map(([why, count]) => `${whole(count)} ${why}`).join("; ")}. ` : ""}${found.no_price.length ? `Without a price: ${found.no_price.slice(0, 5).map((name) => titles.get(name) ?? name).join(", ")}. ` : ""}Raise the limits, lower the probability, relax the SLO, or leave the list of machines empty.`;
  at("frontier-card").hidden = !options.length;
  const levels = [...new Set(options.map((one) => one.evidence_level))];
  at("evidence").replaceChildren(new Option("any", ""), ...levels.map((one) => new Option(words(one), one)));
  redraw();
  at("skipped").replaceChildren(skipped.length ? el("details", {}, el("summary", { text: `Left out: ${whole(skipped.reduce((sum, [, count]) => sum + count, 0))}` }), el("ul", {}, skipped.map(([why, count]) => el("li", { text: `${whole(count)}: ${why}` })))) : "");
  at("verdict").scrollIntoView({ block: "nearest" });
}

function redraw() {
  const rows = shown();
  at("frontier").replaceChildren(chart(rows));
  const pin = (one) => el("button", { type: "button", class: "small", "aria-pressed": String(pins.includes(keyOf(one))), "aria-label": `Pin ${named(one)} ${one.weights} ${one.paid}`, text: "Pin", click: () => {
    const key = keyOf(one);
    pins = pins.includes(key) ? pins.filter((other) => other !== key) : [...pins, key].slice(-MOST_PINS);
    redraw();
    at("options").querySelectorAll("button[aria-pressed]")[rows.indexOf(one)].focus();
  } });
  const columns = [
    ["Machine", (one) => el("a", { href: link(one), text: named(one) })],
    ["Format", "weights"],
    ["Paid", "paid"],
    ["A month", (one) => opens(money(one.usd_month), monthLines(one)), true],
    ["Probability", (one) => opens(`${Math.floor(100 * one.probability)} %`, chanceLines(one)), true],
    ["Carries", (one) => opens(`${number(capacity(one))}${one.capacity_is_lower_bound ? " or more" : ""}`, carriesLines(one)), true],
    ["Evidence", (one) => words(one.evidence_level)],
    ["", (one) => (one.role === "answer" ? "" : one.role)],
    ["", pin],
  ];
  at("options").replaceChildren(rows.length ? el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Machines, table" }, table(rows, columns, { caption: "Machines", here: (one) => one.role === "answer" && one.rank === 1 })) : el("p", { class: "note", text: "No machine passes the filters." }));
  const chosen = found.options.filter((one) => pins.includes(keyOf(one)));
  at("pins-card").hidden = !chosen.length;
  const lines = [["A month", (one) => opens(money(one.usd_month), monthLines(one))], ["Purchase", (one) => opens(money(one.usd_purchase), one.usd_purchase ? priceLines(one) : [])], ["Probability of the SLO", (one) => opens(`${Math.floor(100 * one.probability)} %`, chanceLines(one))], ["Carries", (one) => opens(number(capacity(one)), carriesLines(one))], ["Layout", (one) => `${one.engine}, ${one.layout}`], ["TTFT", (one) => timed(one, "ttft")], ["TPOT", (one) => timed(one, "tpot")], ["Evidence", (one) => one.evidence], ["Verify with", (one) => one.measure && el("button", { type: "button", class: "link", text: "Copy command", "aria-label": `Copy command for ${named(one)}`, click: () => copy(one.measure, "The command is copied.") })]];
  at("pins").replaceChildren(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Pinned machines, table" }, el("table", {}, el("thead", {}, el("tr", {}, el("td"), chosen.map((one) => el("th", { scope: "col", text: `${named(one)} ${one.paid}` })))), el("tbody", {}, lines.map(([title, write]) => el("tr", {}, el("th", { scope: "row", text: title }), chosen.map((one) => el("td", {}, write(one) ?? "–"))))))));
}

/** The arithmetic of an option's numbers. */
const monthLines = (one) => [
  sumLine(one),
  one.usd_purchase && `Purchase ${money(one.usd_purchase)}; it is written off over ${whole(found.terms.horizon_months)} months, ${Math.round(100 * found.terms.residual_share)} % are left.`,
  ...priceLines(one),
];
const priceLines = (one) => [...assumedLines(one), ...Object.entries(one.price_sources).map(([name, price]) => `${titles.get(name) ?? name}: ${money(price.usd)} per ${price.per}, ${price.dates.at(-1)}.`)];
/** A mean time with its range, and the page that has each part of it. */
const timed = (one, metric) => opens(time(one[`${metric}_mean_ms`]), [`90 % range ${time(one[`${metric}_mean_ms_low`])} to ${time(one[`${metric}_mean_ms_high`])}.`], async () => el("a", { href: `${link(one)}#arithmetic`, text: `Parts of ${metric.toUpperCase()} on ${named(one)}` }));
const chanceLines = (one) => [`Probability that ${number(found.load)} ${found.unit} meet all limits.`, ...one.slo.map((limit) => `${limit.target}: expected ${time(limit.expected_ms)}, 90 % range ${time(limit.expected_ms_low)} to ${time(limit.expected_ms_high)}.`)];
const carriesLines = (one) => [`The largest load within the SLO with ${Math.round(100 * found.probability_wanted)} % probability${one.capacity_is_lower_bound ? "; more was not tried" : one.limited_by ? `; then it exceeds ${one.limited_by}` : ""}.`, one.headroom > 0 && `${number(capacity(one))} / ${number(found.load)} = ${Math.round(100 * one.headroom)} % more than asked.`];

/** The page that answers this machine at its share of the load; of a rate at the requests in flight (Little's law). */
function link(one) {
  const share = found.load / one.machines_serving;
  const flying = found.unit === "users" ? share : (share * (one.ttft_mean_ms + (found.output_tokens - 1) * one.tpot_mean_ms)) / 1000;
  const asked = new URLSearchParams({ model: found.model, on: one.machine, users: String(Math.max(1, Math.ceil(flying))), weights: one.weights, engine: one.engine, kv: one.cache });
  // a layout that leaves accelerators idle is not asked for: the page chooses one
  const { tp, pp, dp, ep, dcp, replicas } = one.degrees;
  if (tp * pp * dp * replicas * one.machines === one.accelerators) for (const [name, degree] of Object.entries({ tp, pp, dp, ep, dcp })) asked.set(name, degree);
  for (const name of ["rate", "wait", "input", "output"]) if (at(name).value) asked.set(name, at(name).value);
  const kind = at("load").value;
  if (kind === "people" && !at("pause").value) return `${pageOf("")}?${asked}`;
  asked.set("amount", kind === "rate" ? Number(share.toPrecision(3)) : Math.ceil(share));
  for (const name of LOAD) if (at(name).value) asked.set(name, at(name).value);
  return `${pageOf("")}?${asked}#traffic`;
}

/** Cost over capacity on logarithmic axes: filled where the SLO is met, the cheapest for each capacity joined. */
function chart(rows) {
  const points = rows.filter((one) => one.usd_month > 0 && capacity(one) > 0).map((one) => ({ one, x: capacity(one), y: one.usd_month }));
  if (!points.length) return el("p", { class: "note", text: "No machine has both a price and a capacity." });
  const [W, H, left, top, bottom, right] = [Math.min(Math.max(at("frontier").clientWidth, 300), 1180), 330, 62, 26, 44, 16];
  const ends = (values) => [Math.min(...values) / 1.4, Math.max(...values) * 1.4];
  const [xs, ys] = [ends([...points.map((one) => one.x), found.load]), ends(points.map((one) => one.y))];
  const x = (value) => left + ((W - left - right) * Math.log(value / xs[0])) / Math.log(xs[1] / xs[0]);
  const y = (value) => H - bottom - ((H - top - bottom) * Math.log(value / ys[0])) / Math.log(ys[1] / ys[0]);
  const marks = ([least, most]) => {
    const of = (digits) => digits.flatMap((digit) => Array.from({ length: 16 }, (_, power) => Number((digit * 10 ** (power - 4)).toPrecision(3)))).filter((one) => one >= least && one <= most).sort((one, other) => one - other);
    return [[1, 10], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]].map(of).find((one, place) => one.length >= 4 || place === 3);
  };
  // names would overlap: the points of the frontier have numbers, and a list below has their names
  const edge = [];
  for (const one of [...points].sort((a, b) => a.y - b.y || b.x - a.x)) if (!edge.length || one.x > edge.at(-1).x) edge.push(one);
  const dot = ({ one, x: across, y: up }) => svg("circle", { cx: x(across), cy: y(up), r: pins.includes(keyOf(one)) ? 7 : 5, class: one.slo_met ? "dot here" : "dot" }, svg("title", { text: `${named(one)}, ${one.weights}, ${one.paid}: ${money(up)} a month, carries ${number(across)} (${Math.floor(100 * one.probability)} % for this load)` }));
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Cost of a month over capacity. ${points.map(({ one }) => `${named(one)} ${one.paid}: ${money(one.usd_month)}, ${number(capacity(one))}`).join("; ")}` },
    svg("text", { x: 0, y: 13, class: "strong", text: "USD a month (log)" }),
    marks(ys).map((value) => [svg("line", { x1: left, x2: W - right, y1: y(value), y2: y(value), class: "grid" }), svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end", text: whole(value) })]).flat(),
    marks(xs).map((value) => svg("text", { x: x(value), y: H - bottom + 17, "text-anchor": "middle", text: number(value) })),
    svg("text", { x: (left + W - right) / 2, y: H - 6, "text-anchor": "middle", text: `${found.unit} within the SLO (log)` }),
    svg("line", { x1: x(found.load), x2: x(found.load), y1: top, y2: H - bottom, class: "slo" }),
    svg("text", { x: x(found.load) + (x(found.load) > W * 0.6 ? -6 : 6), y: top + 12, "text-anchor": x(found.load) > W * 0.6 ? "end" : "start", class: "slo-text halo", text: `your load: ${number(found.load)}` }),
    svg("path", { d: edge.map((one, place) => `${place ? "L" : "M"}${x(one.x).toFixed(1)} ${y(one.y).toFixed(1)}`).join(""), class: "line" }),
    points.map(dot),
    edge.map((one, place) => svg("text", { x: x(one.x), y: y(one.y) + 19, "text-anchor": "middle", class: "strong halo", text: place + 1 })),
  );
  return el("div", {}, drawing, el("ol", { "aria-label": "Cheapest for each capacity" }, edge.map(({ one }) => el("li", { text: `${named(one)}, ${one.weights}, ${one.paid}: ${money(one.usd_month)} a month, carries ${number(capacity(one))}${one.slo_met ? "" : ", too little for this load"}` }))));
}

/** The shown options as CSV; cells that a spreadsheet would compute are quoted as text. */
function csv() {
  const rows = shown().map((row) => ({ model: found.model, ...row }));
  const columns = Object.keys(rows[0] ?? {}).filter((name) => typeof rows[0][name] !== "object" || rows[0][name] === null);
  const cell = (value) => { const text = String(value ?? ""); const safe = /^[=+@-]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text; return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe; };
  return `${[columns, ...rows.map((row) => columns.map((name) => row[name]))].map((row) => row.map(cell).join(",")).join("\n")}\n`;
}

at("size").addEventListener("submit", (event) => { event.preventDefault(); search(); });
at("cancel").addEventListener("click", stop);
at("load").addEventListener("change", shownLoad);
for (const [name, list] of Object.entries(LISTS)) at(name).addEventListener("change", () => at(name).dataset.value && choose(name, [...list.chosen, at(name).dataset.value]));
at("export").addEventListener("click", () => save("glmplan-size.csv", csv(), "text/csv"));
for (const name of ["paid", "evidence", "word"]) at(name).addEventListener("input", redraw);
addEventListener("popstate", () => location.reload());
addEventListener("token", () => begin().catch(refusal));
explainTerms();
begin().catch(refusal);
