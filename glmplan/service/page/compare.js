// Up to four plans side by side, and what makes them differ.

import { el, money, number, time, whole } from "./dom.js";

const ROWS = [
  ["Layout", "layout", (value) => value],
  ["Engine", "engine", (value) => value],
  ["KV cache", "cache", (value) => value],
  ["First token", "ttft_mean_ms", time, -1],
  ["Each further token", "tpot_mean_ms", time, -1],
  ["Tokens/s of all", "output_tokens_per_s", number, 1],
  ["Requests held", "requests_held", (value) => whole(Math.min(value, 1e9)), 1],
  ["A month", "usd_month", money, -1],
  ["Paid", "paid", (value) => value],
  ["1 M answer tokens", "usd_per_million_output_tokens", money, -1],
  ["kW at the wall", "kw", number, -1],
];

export function drawCompare(into, found, { names, drop, open, places, refused }) {
  const heads = names.map((name, place) =>
    el("th", { scope: "col" }, name, " ", place < names.length - 1 ? el("span", { class: "acts" }, el("button", { type: "button", class: "small", "aria-label": `Open ${name}`, text: "Open", click: () => open(place) }), el("button", { type: "button", class: "small", "aria-label": `Remove ${name}`, text: "Remove", click: () => drop(place) })) : el("small", { class: "acts", text: "(this page)" })),
  );
  const body = [];
  if (refused) body.push(el("p", { class: "note", text: refused }));
  // plans without an answer have a column too, in which it says so once
  const rows = (found ? ROWS : []).map(([title, field, write, better], row) => {
    const values = names.map((_, place) => (places.includes(place) ? found.plans[places.indexOf(place)][field] : undefined));
    const known = values.filter((value) => typeof value === "number");
    const best = better && known.length > 1 ? (better > 0 ? Math.max(...known) : Math.min(...known)) : null;
    return el(
      "tr",
      {},
      el("th", { scope: "row", text: title }),
      values.map((value) => el("td", {}, value === undefined ? (row ? "–" : "no answer") : value === best && best !== null ? el("strong", { text: `${write(value)} ★` }) : value === null ? "–" : write(value))),
    );
  });
  const causes = found ? Object.entries(found.causes).map(([name, why]) => el("div", {}, el("h3", { text: `${name}, beside ${found.plans[0].plan}` }), el("ul", {}, why.map((line) => el("li", { text: line.trim() }))))) : [];
  into.replaceChildren(
    ...body,
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Comparison, table" }, el("table", { class: "beside" }, el("thead", {}, el("tr", {}, el("td"), heads)), el("tbody", {}, rows))),
    found ? el("p", { class: "note", text: `At ${whole(found.users)} users${found.rent_term ? `; rent term of all plans: ${found.rent_term}` : ""}; ★ is the best of a row.` }) : "",
    causes.length ? el("details", { open: true }, el("summary", { text: "Why they differ" }), causes) : "",
  );
}
