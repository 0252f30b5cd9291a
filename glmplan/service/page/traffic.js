// A plan and its improvements, simulated under traffic.

import { el, number, table, time } from "./dom.js";
import { opens } from "./words.js";

const percent = (share) => `${Math.round(100 * share)} %`;
/** A metric that opens its range; an improvement of the plan has none. */
const range = (field, write) => ({ [field]: one }) => (one ? opens(write(one.value), one.low < one.high ? [`90 % range ${write(one.low)} to ${write(one.high)}.`] : []) : "–");

export function drawTraffic(into, answer) {
  const { traffic, traffic_runs: runs } = answer;
  if (!runs.length) return into.replaceChildren(el("p", { class: "note", text: [answer.headline, ...answer.unknown].join("; ") }));
  const columns = [
    ["Plan", (row) => row.description || "This plan"],
    ["Layout", "layout"],
    ["First token", range("ttft_mean_ms", time), true],
    ["95 % within", (row) => time(row.ttft_p95_ms), true],
    ["Each further token", range("tpot_mean_ms", time), true],
    ["Whole answer", range("e2e_mean_ms", time), true],
    ["Tokens/s of all", range("output_tokens_per_s", number), true],
    ["From the prefix cache", (row) => percent(row.cached_share), true],
    ["KV pool, at most", (row) => percent(row.kv_occupancy_max), true],
    ["Rejected", (row) => (row.rejected || row.left ? `${row.rejected + row.left} of ${row.requests}` : "none"), true],
  ];
  into.replaceChildren(
    el("p", { text: `${traffic[0].toUpperCase()}${traffic.slice(1)}, simulated. A number of this plan opens its 90 % range; improvements are simulated without one.` }),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Traffic, table" }, table(runs, columns, { caption: "The plan under this traffic", here: (row) => !row.description })),
  );
}
