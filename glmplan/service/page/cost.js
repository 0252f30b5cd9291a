// What the plan costs, and from how many tokens of a month it is cheaper than an API.

import { el, money, number, svg, whole } from "./dom.js";
import { ticks } from "./curve.js";
import { assumedLines, opens, sumLine, withoutOption } from "./words.js";

const WIDTH = 430;
const HEIGHT = 240;
const [LEFT, RIGHT, TOP, BOTTOM] = [64, 14, 26, 40];

const title = (way) => way.paid[0].toUpperCase() + way.paid.slice(1);

/** The arithmetic of a month. */
export function monthLines(found, way) {
  return [
    sumLine(way),
    way.usd_purchase && `Depreciation: ${money(way.usd_purchase)} of purchase × ${Math.round(100 * (1 - found.residual_share))} % / ${whole(found.horizon_months)} months; ${Math.round(100 * found.residual_share)} % are its residual value.`,
    way.usd_per_million_output_tokens && millionLine(found, way),
    found.kw && way.month_lines.power && `Power: ${powerLine(found)}`,
  ].filter(Boolean);
}

const millionLine = (found, way) => `${money(way.usd_month)} / ${number(found.million_output_tokens_month)} M output tokens = ${money(way.usd_per_million_output_tokens)} for a million, at a mean load of ${Math.round(100 * found.utilisation)} % of ${number(found.output_tokens_per_s)} tokens/s.`;

/** The arithmetic of the power. */
export const powerLine = (found) => `${found.kw_words} = ${whole(1000 * found.kw)} W at the wall.`;

/** What each way costs: a column for each, so that a telephone has room too. */
function costTable(found, ways) {
  const rows = [
    ["A month", (way) => opens(money(way.usd_month), monthLines(found, way))],
    ["Over published prices", (way) => (way.usd_month_low === null || way.usd_month_low === way.usd_month_high ? "–" : `${money(way.usd_month_low)} to ${money(way.usd_month_high)}`)],
    ["Purchase", (way) => money(way.usd_purchase)],
    ["A million answer tokens", (way) => opens(money(way.usd_per_million_output_tokens), [millionLine(found, way)])],
    ["A million tokens, prompts and answers", (way) => opens(money(way.usd_per_million_tokens), [`${money(way.usd_month)} / (${number(found.million_input_tokens_month)} M prompt tokens + ${number(found.million_output_tokens_month)} M output tokens).`])],
    ["Even with the API, a month", (way) => (way.break_even_million_tokens === null ? "–" : opens(evenWords(found, way), [`${money(way.usd_month)} / ${money(found.api.usd_month / (found.million_input_tokens_month + found.million_output_tokens_month))} that the API charges for a million tokens of this mix.`]))],
    ["Purchase is back after", (way) => (way.break_even_month === null ? "–" : `${number(way.break_even_month)} months`)],
  ].map(([name, write]) => [name, ways.map(write)]);
  return el(
    "table",
    { class: "lines" },
    el("caption", { class: "sr", text: "Cost of each way to come by the machine" }),
    el("thead", {}, el("tr", {}, el("td"), ways.map((way) => el("th", { scope: "col", class: "n", text: title(way) })))),
    el("tbody", {}, rows.filter(([, cells]) => cells.some((cell) => cell !== "–")).map(([name, cells]) => el("tr", {}, el("th", { scope: "row", text: name }), cells.map((cell) => el("td", { class: "n" }, cell))))),
  );
}

/** The break-even with the API, and whether the machine carries it. */
function evenWords(found, way) {
  const even = way.break_even_million_tokens;
  return `${number(even)} M tokens${even > found.million_tokens_month_most ? ", above its capacity" : ""}`;
}

function evenChart(found, way) {
  const api = found.api;
  const tokens = found.million_input_tokens_month + found.million_output_tokens_month;
  const price = api.usd_month / tokens;
  const even = way.break_even_million_tokens;
  const most = Math.max(even * 1.6, tokens * 1.15);
  const top = ticks(Math.max(price * most, way.usd_month_high ?? way.usd_month));
  const across = ticks(most).filter((one) => one <= most * 1.001);
  const x = (count) => LEFT + ((WIDTH - LEFT - RIGHT) * count) / most;
  const y = (usd) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * usd) / top.at(-1);
  const width = WIDTH - LEFT - RIGHT;
  const words = `${way.paid}: ${money(way.usd_month)} a month; the API costs the same at ${evenWords(found, way)} a month.`;
  const late = x(even) > WIDTH * 0.72;
  const named = y(way.usd_month_high ?? way.usd_month) - 7;
  // the name of the machine, or of the API, may stand where the load has its words
  const loadAt = named < TOP + 26 || x(tokens) > x(most * 0.75) ? HEIGHT - BOTTOM - 10 : TOP + 10;
  const seller = found.api.seller === "given with the question" ? "your API price" : found.api.seller;
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words },
    svg("text", { x: 0, y: 13, class: "strong", text: `${title(way)} against ${seller}` }),
    svg("text", { x: WIDTH - RIGHT, y: 13, "text-anchor": "end", text: `${found.currency} a month` }),
    top.map((value) => svg("g", {}, svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: value ? "grid" : "axis" }), svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end", text: whole(value) }))),
    across.map((count) => svg("text", { x: x(count), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle", text: number(count) })),
    svg("text", { x: LEFT + width / 2, y: HEIGHT - 4, "text-anchor": "middle", text: "million tokens a month, prompts and answers" }),
    svg("line", { x1: x(tokens), x2: x(tokens), y1: TOP, y2: HEIGHT - BOTTOM, class: "safe" }),
    way.usd_month_high > way.usd_month_low ? svg("rect", { x: LEFT, width, y: y(way.usd_month_high), height: y(way.usd_month_low) - y(way.usd_month_high), class: "machine-band" }) : null,
    svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(way.usd_month), y2: y(way.usd_month), class: "machine" }),
    svg("line", { x1: x(0), y1: y(0), x2: x(most), y2: y(price * most), class: "api" }),
    svg("text", { x: LEFT + 6, y: named, class: "machine-text halo", text: way.paid }),
    svg("text", { x: x(most * 0.92) - 6, y: y(price * most * 0.92) - 6, "text-anchor": "end", class: "api-text halo", text: "API" }),
    svg("circle", { cx: x(even), cy: y(way.usd_month), r: 4.5, class: "even" }),
    svg("text", { x: x(even) + (late ? -8 : 8), y: y(way.usd_month) + 22, "text-anchor": late ? "end" : "start", class: "strong halo", text: `even at ${number(even)} M` }),
    svg("text", { x: x(tokens) + (x(tokens) > WIDTH * 0.6 ? -6 : 6), y: loadAt, "text-anchor": x(tokens) > WIDTH * 0.6 ? "end" : "start", class: "safe-text halo", text: `this load: ${number(tokens)} M` }),
  );
}

export function drawCost(into, found, refused, give) {
  if (!found || !found.ways) {
    into.replaceChildren(el("p", { class: "note", text: refused || (found && found.reason) || "No cost is told of a plan that does not fit." }));
    return;
  }
  const priced = found.ways.filter((way) => way.usd_month !== null);
  const notes = [];
  if (found.api) notes.push(`API: ${found.api.seller}, ${money(found.api.usd_per_million_input_tokens)} for a million prompt tokens and ${money(found.api.usd_per_million_output_tokens)} for a million answer tokens (${found.api.date}); ${money(found.api.usd_month)} a month for the same tokens.`);
  else notes.push(`API: ${withoutOption(found.api_missing)}; give one under Engine, layout, prices.`);
  const missing = found.ways.filter((way) => way.price_missing).map((way) => el("p", { class: "note" }, `${way.paid === "buy" ? "Purchase" : "Rent"}: ${withoutOption(way.price_missing)}. `, el("button", { type: "button", class: "small", text: `Give your ${way.paid === "buy" ? "price" : "rent"}`, click: () => give(way.paid === "buy" ? "buy" : "rent") })));
  for (const text of new Set(found.ways.flatMap(assumedLines))) notes.push(text);
  for (const way of found.ways) for (const old of way.price_stale) notes.push(`Old price: ${old.replace(", STALE", "")}.`);
  notes.push(`At ${whole(found.users)} users and a mean load of ${Math.round(found.utilisation * 100)} % of that; written off over ${whole(found.horizon_months)} months${found.kw ? `; ${number(found.kw)} kW at the wall` : ""}.`);
  into.replaceChildren(...[
    priced.length && el("div", { class: "costs" }, el("div", { class: priced.length > 1 ? "scroll many" : "scroll", tabindex: "0", role: "region", "aria-label": "Cost, table" }, costTable(found, priced)), found.api && el("div", { id: "even" }, priced.map((way) => evenChart(found, way)))),
    ...missing,
    ...notes.map((text) => el("p", { class: "note", text })),
  ].filter(Boolean));
}
