// Up to four plans side by side, and what makes them differ.

import { el, money, number, time, whole } from "./dom.js";
import { glossed, LEVELS, plain } from "./words.js";

const asIs = (value) => value;
const percent = (value) => (value >= 0.99 ? "99 % or more" : `${Math.floor(100 * value + 1e-9)} %`);
/** Rows: [title, field, how it is written, 1 where more is better and -1 where less is]. */
const ROWS = [
  ["SLO is met with", "probability", percent, 1],
  ["People within the SLO at 95 %", "users_at_95", whole, 1],
  ["Layout", "layout", asIs],
  ["Engine", "engine", asIs],
  ["KV cache", "cache", asIs],
  ["First token (TTFT)", "ttft_mean_ms", time, -1],
  ["Each further token (TPOT)", "tpot_mean_ms", time, -1],
  ["Tokens/s of all", "output_tokens_per_s", number, 1],
  ["Requests in the KV pool", "requests_held", (value) => whole(Math.min(value, 1e9)), 1],
  ["A month", "usd_month", money, -1],
  ["Paid", "paid", asIs],
  ["1 M answer tokens", "usd_per_million_output_tokens", money, -1],
  ["kW at the wall", "kw", number, -1],
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

function cell(plan, [, field, write], best) {
  const value = plan[field];
  if (value === null || value === undefined || value === "") return "–";
  const range = plan[`${field}_low`] && el("small", { text: ` ${write(plan[`${field}_low`])} to ${write(plan[`${field}_high`])}` });
  return [plan === best ? el("strong", { text: `${write(value)} ★` }) : write(value), range].filter(Boolean);
}

export function drawCompare(into, found, { names, drop, open, places, refused }) {
  const heads = names.map((name, place) =>
    el("th", { scope: "col" }, name, " ", place < names.length - 1 ? el("span", { class: "acts" }, el("button", { type: "button", class: "small", "aria-label": `Open ${name}`, text: "Open", click: () => open(place) }), el("button", { type: "button", class: "small", "aria-label": `Remove ${name}`, text: "Remove", click: () => drop(place) })) : el("small", { class: "acts", text: "(this page)" })),
  );
  const body = [];
  if (refused) body.push(el("p", { class: "note", text: plain(refused) }));
  // plans without an answer have a column too, in which it says so once
  const rows = (found ? ROWS : []).map((row, number) => {
    const [title, field, , better] = row;
    const best = bestOf(found.plans, field, better);
    const of = (place) => (places.includes(place) ? cell(found.plans[places.indexOf(place)], row, best) : number ? "–" : "no answer");
    return el("tr", {}, el("th", { scope: "row" }, glossed(title)), names.map((_, place) => el("td", {}, of(place))));
  });
  const causes = found ? Object.entries(found.causes).map(([name, why]) => el("div", {}, el("h3", { text: `${name}, beside ${found.plans[0].plan}` }), el("ul", {}, why.map((line) => el("li", { text: line.trim() }))))) : [];
  into.replaceChildren(
    ...body,
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Comparison, table" }, el("table", { class: "beside" }, el("thead", {}, el("tr", {}, el("td"), heads)), el("tbody", {}, rows))),
    found ? el("p", { class: "note", text: `At ${whole(found.users)} users${found.rent_term ? `; rent term of all plans: ${found.rent_term}` : ""}; ranges hold with 90 % probability; ★ is the best of a row where ranges do not overlap and all plans are paid alike.` }) : "",
    causes.length ? el("details", { open: true }, el("summary", { text: "Why they differ" }), causes) : "",
  );
}
