// The answer to the question: verdict with its probability, the reason of its width, and three next steps.

import { monthLines } from "./cost.js";
import { at, el, money, number, span, svg, time, whole } from "./dom.js";
import { assumedLines, glossed, inForm, lines, unfolds } from "./words.js";

export const MARKS = { yes: "✓", likely: "≈", unlikely: "!", not_safe: "!", does_not_load: "✕", engine_cannot: "✕", unknown: "?" };
const people = (count) => (count === 1 ? "1 person" : `${whole(count)} people`);
/** A probability as whole percent, as the command line rounds it. */
const percent = (chance) => Math.min(Math.floor(100 * chance + 1e-9), 99);

/** The verdict of a question in a few words. */
export function verdictWords({ answer, may_start: may }) {
  const { verdict, users, probability } = answer;
  if (verdict === "does_not_load") return may ? "Does not load, but may start" : "Does not load";
  if (verdict === "engine_cannot") return "The engine cannot serve it";
  if (verdict === "not_safe") return "Not safe";
  if (verdict === "unknown") return "Not known";
  const start = { yes: "Yes", likely: "Likely", unlikely: "Unlikely" }[verdict];
  return `${start} for ${people(users)}: ${percent(probability)} %${probability >= 0.99 ? " or more" : ""}`;
}

/** The limits that a number of users meets. */
export const limitWords = (safe) => `TPOT of ${time(safe.target_tpot_ms)}${safe.target_ttft_ms ? `, TTFT of ${time(safe.target_ttft_ms)}` : ""}`;

const strong = (text) => el("b", { text });

/** Sentences of the verdict: what loads, what is expected, and against which limits. */
function sentences(answer, row) {
  const { safe, memory, plan, question } = answer;
  const lacking = answer.answer.verdict === "unknown" ? answer.unknown.map((text) => `the speed is not known; unknown: ${text.replace(/^.*\bunknown: /, "")}`) : [];
  const said = [answer.headline, ...answer.reasons, ...lacking].map((text) => inForm(`${text[0].toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`));
  if (!row || !safe) return [[said.join(" ")]];
  const rooms = [[memory?.kv_pool_gib, "of each accelerator"], [memory?.kv_pool_host_gib, "in host memory"]].filter(([size]) => size > 0);
  const free = rooms.length ? `, ${rooms.map(([size, where]) => `${number(size)} GiB for the KV cache ${where}`).join(" and ")}` : "";
  const found = [[`It loads: ${question.checkpoint}, ${plan.layout} with ${question.engine}${free}.`]];
  const each = row.output_tokens_per_s_per_request;
  if (each) found.push([" Expected: ", strong(`${number(each.value)} tokens/s each`), `, below ${number(each.low)} in 1 of 20 cases; the limit is ${number(1000 / safe.target_tpot_ms)}.`]);
  if (row.ttft_mean_ms && safe.target_ttft_ms) found.push([` First token after ${time(row.ttft_mean_ms.value)}, above ${time(row.ttft_mean_ms.high)} in 1 of 20 cases; the limit is ${time(safe.target_ttft_ms)}.`]);
  found.push([" ", strong(`${people(safe.users)} at ${Math.round(100 * safe.probability)} % confidence, ${whole(safe.expected)} expected.`)]);
  return found;
}

/** Why the range is as wide as it is: the evidence, inputs outside the measured domain, settings that were left open. */
function width(answer, row) {
  const found = [];
  if (answer.basis) found.push(`${answer.basis[0].toUpperCase()}${answer.basis.slice(1)}`);
  // the level of evidence is one of the reasons; it is told once
  const beyond = (row?.out_of_domain ?? "").split("; ").filter((one) => one && one !== answer.basis);
  if (beyond.length) found.push(`extrapolated: ${beyond.join("; ")}`);
  for (const one of answer.stating) found.push(`stating ${one.setting.replaceAll("_", " ")} would divide the range of decode by ${number(one.decode)}`);
  return found.length ? `Why this range: ${found.join("; ")}.` : "";
}

const factor = (value) => (value < 1.5 ? `±${Math.round(100 * (value - 1))} %` : `a factor ${number(value, 2)}`);

/** The three next steps; that of money comes with the cost. */
function steps(answer, row, { copy, take, flows }) {
  const bench = answer.recommended_benchmark;
  const loads = Boolean(row);
  const metric = bench?.metrics.find((one) => one.users === bench.users && one.metric.startsWith("tpot")) ?? bench?.metrics[0];
  const measure = bench
    ? el("div", {}, el("h2", { text: "Make it sure: measure once" }), el("p", {}, `A benchmark at ${whole(bench.users)} ${bench.users === 1 ? "user" : "users"} narrows the range of the speed at ${whole(metric.users)} from ${factor(metric.interval_factor)} to ${factor(metric.interval_factor_after)}. `, el("button", { type: "button", class: "link", text: "Copy command", click: () => copy(bench.command) })))
    : el("div", {}, el("h2", { text: "Make it sure: measure" }), el("p", {}, ["site", "configuration"].includes(answer.evidence_level) ? "This machine was measured. " : "", el("a", { href: flows.check, text: "Compare a server with this prediction" })));
  const good = answer.changes.find((one) => ["fits", "tight"].includes(one.verdict) && take(one.options));
  const buy = () => el("a", { href: flows.buy, text: "Search all machines" });
  const other = el("div", {}, el("h2", { text: "Take another format" }), el("p", {}, "The table below has every format of this model on this machine. ", el("a", { href: "#formats-title", text: "See the formats" })));
  const better = good
    ? el("div", {}, el("h2", { text: "Make it fit better" }), el("p", {}, good.description, good.total_tokens_per_s ? `: ${number(good.total_tokens_per_s)} tokens/s together. ` : ". ", el("button", { type: "button", class: "link", text: "Try it", "aria-label": `Try it: ${good.description}`, click: () => take(good.options)() }), ...(loads ? [" or ", buy()] : [])))
    : loads && el("div", {}, el("h2", { text: "Find a machine" }), el("p", {}, "Nothing that was tried on this machine improves it. ", buy()));
  const machine = el("div", {}, el("h2", { text: "Find a machine" }), el("p", {}, "A search over all machines finds the cheapest one that meets the SLO. ", buy()));
  const cheaper = loads && el("div", { id: "cheaper" }, el("h2", { text: "Cheaper not to buy?" }), el("p", { text: "…" }));
  return loads ? [measure, better, cheaper] : [other, better, machine].filter(Boolean);
}

/** Compare the month of the machine with that of an API, where both are known. */
export function drawCheaper(found, open) {
  const place = at("cheaper")?.querySelector("p");
  if (!place) return;
  const ways = found?.ways?.filter((way) => way.usd_month !== null) ?? [];
  const way = ways.sort((one, other) => one.usd_month - other.usd_month)[0];
  const machine = way && `this machine ${money(way.usd_month)} a month (${way.paid === "buy" ? "bought" : "rented"})`;
  const more = el("button", { type: "button", class: "link", text: found?.api && way ? "Break-even" : "Prices", click: open });
  if (found?.api && way) place.replaceChildren(`At this load an API costs ${money(found.api.usd_month)}, ${machine}. `, more);
  else if (way) place.replaceChildren(`${machine[0].toUpperCase()}${machine.slice(1)}; no API price is known. `, more);
  else if (found?.api) place.replaceChildren(`At this load an API costs ${money(found.api.usd_month)} a month; this machine has no known price. `, more);
  else place.replaceChildren("No price is known. ", more);
}

export function drawVerdict(answer, users, tools) {
  const row = answer.users.find((one) => one.users === users);
  const words = verdictWords(answer);
  at("verdict").dataset.verdict = answer.answer.verdict;
  at("verdict-title").replaceChildren(el("span", { "aria-hidden": "true", text: MARKS[answer.answer.verdict] }), ` ${words}`);
  at("headline").replaceChildren(...sentences(answer, row).flat());
  at("why").replaceChildren(...glossed(width(answer, row)));
  at("why").hidden = !at("why").textContent;
  at("next").replaceChildren(...steps(answer, row, tools));
  at("status").textContent = `${words}. ${answer.headline}`;
}

/** A range as a bar on a logarithmic scale: 90 % light, 50 % dark, the limit dashed. */
function rangeBar(figure, limit) {
  const ends = [figure.low, figure.high, ...(limit ? [limit] : [])];
  const [least, most] = [Math.min(...ends) / 1.4, Math.max(...ends) * 1.4];
  const x = (value) => `${((100 * Math.log(value / least)) / Math.log(most / least)).toFixed(2)}%`;
  const wide = (low, high) => `${((100 * Math.log(high / low)) / Math.log(most / least)).toFixed(2)}%`;
  return svg(
    "svg",
    { class: "range", height: 18, role: "img", "aria-label": `${span(figure)} with 90 % probability${limit ? `, limit ${number(limit)}` : ""}` },
    svg("rect", { x: 0, y: 4, width: "100%", height: 10, class: "track" }),
    svg("rect", { x: x(figure.low), y: 4, width: wide(figure.low, figure.high), height: 10, class: "band" }),
    figure.inner_low ? svg("rect", { x: x(figure.inner_low), y: 4, width: wide(figure.inner_low, figure.inner_high), height: 10, class: "band inner" }) : null,
    svg("line", { x1: x(figure.value), x2: x(figure.value), y1: 2, y2: 16, class: "whisker" }),
    limit ? svg("line", { x1: x(limit), x2: x(limit), y1: 0, y2: 18, class: "slo" }) : null,
  );
}

const PARTS = { weights: "weight reads", launch: "launch and CPU overhead", cache: "KV cache reads", links: "communication", compute: "matrix compute", host: "weights in host memory" };

/** A figure that opens its arithmetic. */
function figure(name, value, unit, bar, texts, more) {
  return unfolds(el("details", { class: "figure" }, el("summary", {}, el("span", { text: name }), el("span", { class: "big" }, el("b", { text: value }), unit && ` ${unit}`), bar), el("div", { class: "note" }, lines(texts))), more);
}

/** The arithmetic of the speed of each. */
export function eachLines({ tpot_mean_ms: tpot, output_tokens_per_s_per_request: each }) {
  return [tpot && `1000 ms / ${number(tpot.value)} ms of TPOT; prompts and waiting are not in it.`, `90 % range ${span(each)}${each.inner_low ? `, 50 % range ${number(each.inner_low)} to ${number(each.inner_high)}` : ""}.`].filter(Boolean);
}

export function drawFigures(answer, users, sums) {
  const row = answer.users.find((one) => one.users === users);
  const { safe, memory, context, question } = answer;
  // a plan without speeds has no chart and no figures: its sections do not stand empty
  document.querySelector(".pair").hidden = !row && answer.answer.verdict !== "unknown";
  if (!row) return at("figures").replaceChildren(el("p", { class: "note", text: answer.answer.verdict === "does_not_load" ? "A plan that does not load has no speed." : `No speed: ${answer.unknown.join("; ") || "not known"}.` }));
  const each = row.output_tokens_per_s_per_request;
  const all = row.output_tokens_per_s;
  const user = row.output_tokens_per_s_per_user;
  const found = [];
  if (each) found.push(figure("Each, while the answer streams", number(each.value), "tok/s", rangeBar(each, safe && 1000 / safe.target_tpot_ms), eachLines(row), () => sums("tpot")));
  if (all) found.push(figure("All together", number(all.value), "tok/s", rangeBar(all), [`${whole(users)} × ${number(user?.value)} tokens/s: output tokens over the whole time, with prompts and waiting.`, `90 % range ${span(all)}.`], () => sums("rate")));
  if (row.ttft_mean_ms) found.push(figure("First token after", time(row.ttft_mean_ms.value), "", rangeBar(row.ttft_mean_ms, safe?.target_ttft_ms), [`Mean TTFT of ${whole(users)} prompts of ${whole(question.input_tokens)} tokens in a closed loop, waiting included.`, `90 % range ${time(row.ttft_mean_ms.low)} to ${time(row.ttft_mean_ms.high)}.`], () => sums("ttft")));
  if (memory?.requests_held) found.push(figure("KV pool holds", whole(memory.requests_held), memory.requests_held === 1 ? "request" : "requests", null, [`${whole(memory.kv_pool_tokens.value)} tokens (${whole(memory.kv_pool_tokens.low)} to ${whole(memory.kv_pool_tokens.high)}) / ${whole(question.input_tokens + question.output_tokens)} tokens of a request.`], () => sums("pool")));
  if (context.one_request_tokens) found.push(figure("Longest request", whole(context.one_request_tokens), "tokens", null, [`The model reads up to ${whole(context.model_max_tokens)} tokens; ${whole(context.one_request_tokens_low)} fit in the pessimistic case.`], () => sums("pool")));
  const parts = Object.entries(row.step_time_breakdown ?? {}).sort(([, one], [, other]) => other - one).filter(([, share]) => share >= 0.01);
  if (parts.length) found.push(figure("Largest part of a step", `${Math.round(100 * parts[0][1])} %`, PARTS[parts[0][0]] ?? parts[0][0], null, [`${parts.map(([name, share]) => `${PARTS[name] ?? name} ${Math.round(100 * share)} %`).join(", ")} of a decode step at ${whole(users)} users.`], () => sums("tpot")));
  // its place is kept, so that nothing below moves when the price comes
  at("figures").replaceChildren(...found, el("div", { id: "price-figure", class: "figure", text: "…" }), el("p", { class: "note", text: "Bar: 90 % range, dark 50 %; dashes: your limit. Open a figure for its arithmetic." }));
}

export function priceFigure(found) {
  const place = at("price-figure");
  const way = found?.ways?.find((one) => one.usd_month !== null);
  if (!place) return;
  if (!way) return place.remove();
  place.replaceWith(figure(`A month, ${way.paid === "buy" ? "bought" : "rented"}`, money(way.usd_month), "", null, [
    ...monthLines(found, way),
    ...assumedLines(way),
    found.api ? `The API (${found.api.seller}) charges ${money(found.api.usd_month)} a month for the same tokens.` : "No API price is known.",
  ]));
}
