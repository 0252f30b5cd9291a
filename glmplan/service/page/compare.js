// Up to four plans side by side, and what makes them differ.

import { monthLines, powerLine } from "./cost.js";
import { el, money, number, time, whole } from "./dom.js";
import { assumedLines, glossed, LEVELS, lines, opens, plain } from "./words.js";

const asIs = (value) => value;
const percent = (value) => (value >= 0.99 ? "99 % or more" : `${Math.floor(100 * value + 1e-9)} %`);
const range = (plan, field, write) => `90 % range ${write(plan[`${field}_low`])} to ${write(plan[`${field}_high`])}.`;
const safe = (plan) => `Users within the SLO: ${whole(plan.users_at_95)} with 95 %, ${whole(plan.users_at_80)} with 80 %, ${whole(plan.users_at_50)} with 50 % probability.`;
/** The way that the comparison chose, in the costs of the plan. */
const wayOf = (costs, plan) => costs.ways.find((one) => one.paid === plan.paid);
/** What is asked for when a cell is opened: a part of the arithmetic of its plan, or its costs. */
const MORE = {
  probability: ({ sums }) => sums("safe"),
  users_at_95: ({ sums }) => sums("safe"),
  ttft_mean_ms: ({ sums }) => sums("ttft"),
  tpot_mean_ms: ({ sums }) => sums("tpot"),
  output_tokens_per_s: ({ sums }) => sums("rate"),
  requests_held: ({ sums }) => sums("pool"),
  usd_month: async ({ costs }, plan) => { const found = await costs(); return lines(monthLines(found, wayOf(found, plan))); },
  usd_per_million_output_tokens: async ({ costs }, plan) => { const found = await costs(); return lines(monthLines(found, wayOf(found, plan))); },
  kw: async ({ costs }) => lines([powerLine(await costs())]),
};
/** Rows: [title, field, how it is written, 1 where more is better and -1 where less is, its arithmetic of a plan and the users]. */
const ROWS = [
  ["SLO is met with", "probability", percent, 1, (plan, users) => [`Probability that ${whole(users)} users stay within the limits of TPOT and TTFT.`, safe(plan)]],
  ["People within the SLO at 95 %", "users_at_95", whole, 1, (plan) => [safe(plan)]],
  ["Layout", "layout", asIs],
  ["Engine", "engine", asIs],
  ["KV cache", "cache", asIs],
  ["First token (TTFT)", "ttft_mean_ms", time, -1, (plan, users) => [`Mean TTFT of ${whole(users)} users in a closed loop, waiting included.`, range(plan, "ttft_mean_ms", time)]],
  ["Each further token (TPOT)", "tpot_mean_ms", time, -1, (plan) => [`${number(1000 / plan.tpot_mean_ms)} tokens/s of each while the answer streams.`, range(plan, "tpot_mean_ms", time)]],
  ["Tokens/s of all", "output_tokens_per_s", number, 1, (plan, users) => [`${whole(users)} × ${number(plan.output_tokens_per_s / users)} tokens/s: output tokens over the whole time, with prompts and waiting.`, range(plan, "output_tokens_per_s", number)]],
  ["Requests in the KV pool", "requests_held", (value) => whole(Math.min(value, 1e9)), 1, () => ["Tokens of the KV pool / tokens of a request, prompt and answer."]],
  ["A month", "usd_month", money, -1, (plan) => [`${termOf(plan.paid) === "buy" ? "Purchase over its months, power and running costs" : "Rent of every hour"}.`, ...assumedLines(plan)]],
  ["Paid", "paid", asIs],
  ["1 M answer tokens", "usd_per_million_output_tokens", money, -1, (plan) => ["A month over its output tokens.", ...assumedLines(plan)]],
  ["kW at the wall", "kw", number, -1, () => ["Power of accelerators and host, with the losses of the supply."]],
  ["Evidence level", "evidence_level", (value) => LEVELS[value] ?? value],
];
/** A month bought and a month rented are no equal terms. */
const termOf = (paid) => paid.split(" ")[0];

/** The plan that is best in a row; none where intervals overlap or the terms of payment differ. */
function bestOf(plans, field, better) {
  const known = plans.filter((one) => typeof one[field] === "number");
  if (!better || known.length < 2 || (field.startsWith("usd_") && new Set(known.map((one) => termOf(one.paid))).size > 1)) return null;
  const [first, second] = [...known].sort((one, other) => better * (other[field] - one[field]));
  const [near, far] = better > 0 ? ["_low", "_high"] : ["_high", "_low"];
  const apart = (one) => better * ((first[field + near] ?? first[field]) - (one[field + far] ?? one[field])) > 0;
  return first[field] !== second[field] && known.every((one) => one === first || apart(one)) ? first : null;
}

function cell(plan, [, field, write, , texts], best, users, parts) {
  const value = plan[field];
  if (value === null || value === undefined || value === "") return "–";
  const ends = plan[`${field}_low`] && el("small", { text: ` ${write(plan[`${field}_low`])} to ${write(plan[`${field}_high`])}` });
  const shown = [plan === best ? el("strong", { text: `${write(value)} ★` }) : write(value), ends].filter(Boolean);
  return texts ? opens(shown, texts(plan, users), () => MORE[field](parts, plan)) : shown;
}

export function drawCompare(into, found, { names, drop, open, places, refused, parts, limits }) {
  const heads = names.map((name, place) =>
    el("th", { scope: "col" }, name, " ", place < names.length - 1 ? el("span", { class: "acts" }, el("button", { type: "button", class: "small", "aria-label": `Open ${name}`, text: "Open", click: () => open(place) }), el("button", { type: "button", class: "small", "aria-label": `Remove ${name}`, text: "Remove", click: () => drop(place) })) : el("small", { class: "acts", text: "(this page)" })),
  );
  const body = [];
  if (refused) body.push(el("p", { class: "note", text: plain(refused) }));
  // plans without an answer have a column too, in which it says so once
  const rows = (found ? ROWS : []).map((row, number) => {
    const [title, field, , better] = row;
    const best = bestOf(found.plans, field, better);
    const of = (place) => (places.includes(place) ? cell(found.plans[places.indexOf(place)], row, best, found.users, parts[place]) : number ? "–" : "no answer");
    return el("tr", {}, el("th", { scope: "row" }, glossed(title)), names.map((_, place) => el("td", {}, of(place))));
  });
  const causes = found ? Object.entries(found.causes).map(([name, why]) => el("div", {}, el("h3", { text: `${name}, beside ${found.plans[0].plan}` }), el("ul", {}, why.map((line) => el("li", { text: line.trim() }))))) : [];
  into.replaceChildren(
    ...body,
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Comparison, table" }, el("table", { class: "beside" }, el("thead", {}, el("tr", {}, el("td"), heads)), el("tbody", {}, rows))),
    found ? el("p", { class: "note", text: `At ${whole(found.users)} users${limits}${found.rent_term ? `; rent term of all plans: ${found.rent_term}` : ""}; ranges hold with 90 % probability; ★ is the best of a row where ranges do not overlap and all plans are paid alike.` }) : "",
    causes.length ? el("details", { open: true }, el("summary", { text: "Why they differ" }), causes) : "",
  );
}
