// One chart over users on logarithmic axes: the SLO as a line, zones of probability, and the 50 % and 90 % bands.

import { el, number, span, svg, table, time, whole } from "./dom.js";

const [TOP, BOTTOM, RIGHT] = [24, 44, 14];
/** Mean width of a letter of the charts [px]. */
const LETTER = 6.7;

/** Round ends of a scale, and where its lines stand. */
export function ticks(most, count = 4) {
  const raw = most / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
  const found = [];
  for (let at = 0; at <= most * 1.0001 + step * 0.999; at += step) found.push(Number(at.toPrecision(6)));
  return found;
}

/** Ticks of a logarithmic axis: 1, 2, 5 of each decade, fewer where many decades are shown. */
function logTicks(least, most) {
  const wide = Math.log10(most / least);
  const found = [];
  for (let power = Math.floor(Math.log10(least)); power <= Math.ceil(Math.log10(most)); power += 1) for (const digit of wide > 2.5 ? [1] : [1, 2, 5]) found.push(Number((digit * 10 ** power).toPrecision(3)));
  return found.filter((one) => one >= least * 0.999 && one <= most * 1.001);
}

/** Users below an axis: powers of two that do not run into each other. */
function userTicks(least, most, room) {
  const found = [];
  for (let at = 1; at <= most; at *= 2) if (at >= least) found.push(at);
  const every = Math.ceil(found.length / Math.max(Math.floor(room / 52), 2));
  return found.filter((_, place) => place % every === 0);
}

const counted = ({ users }) => `${whole(users)} ${users === 1 ? "user" : "users"}`;
const seconds = (figure) => figure && Object.fromEntries(Object.entries(figure).map(([name, value]) => [name, value / 1000]));
/** What may be drawn: [name, unit, figure of a row, limit of the SLO, words of the limit]. */
const METRICS = {
  each: ["Speed of each", "tokens/s of each", (row) => row.output_tokens_per_s_per_request, (safe) => safe && 1000 / safe.target_tpot_ms, (limit) => `your limit: ${number(limit)} tokens/s`],
  first: ["First token", "s to the first token", (row) => seconds(row.ttft_mean_ms), (safe) => safe?.target_ttft_ms && safe.target_ttft_ms / 1000, (limit) => `your limit: ${number(limit)} s`],
  all: ["All together", "tokens/s of all", (row) => row.output_tokens_per_s, () => null, () => ""],
  chance: ["Probability", "probability that the SLO is met", null, () => null, () => ""],
};
let metric = "each";

/** Labels that do not lie on each other: each takes the first of its places that is free. */
function labels(left, width, height) {
  const taken = [];
  return (text, places, more = {}) => {
    const size = LETTER * text.length;
    for (const [x, y, anchor = "start"] of places) {
      const start = anchor === "start" ? x : anchor === "end" ? x - size : x - size / 2;
      const box = [start - 3, y - 13, start + size + 3, y + 4];
      if (box[0] < left || box[2] > width || box[1] < 0 || box[3] > height) continue;
      if (taken.some((one) => box[0] < one[2] && box[2] > one[0] && box[1] < one[3] && box[3] > one[1])) continue;
      taken.push(box);
      return svg("text", { x, y, "text-anchor": anchor, ...more, text });
    }
    return null;
  };
}

/** Where each zone of probability ends: [class, first, last, words]. */
function zonesOf(safe, most) {
  if (!safe) return [];
  const sure = Math.min(safe.users, most);
  const even = Math.min(Math.max(safe.users_at_50 ?? safe.expected, sure), most);
  const percent = Math.round(safe.probability * 100);
  return [
    sure >= 1 && ["z-yes", 1, sure, `${percent} % sure: to ${whole(safe.users)}`, `sure: to ${whole(safe.users)}`],
    even > sure && ["z-likely", Math.max(sure, 1), even, `likely: to ${whole(safe.users_at_50 ?? safe.expected)}`, "likely"],
    most > even && ["z-unlikely", Math.max(even, 1), most, "unlikely", "unlikely"],
  ].filter(Boolean);
}

function chart(rows, safe, here, width) {
  const [, unit, figureOf, limitOf, limitWords] = METRICS[metric];
  const chance = metric === "chance";
  const points = chance ? (safe?.curve ?? []).map((one) => ({ users: one.users, value: 100 * one.probability })) : rows.filter((row) => figureOf(row)).map((row) => ({ users: row.users, ...figureOf(row) }));
  if (!points.length) return el("p", { class: "note", text: "Not known for this plan." });
  const height = width < 480 ? 270 : 320;
  const limit = limitOf(safe);
  const ends = chance ? [0, 100] : [Math.min(limit ?? Infinity, ...points.map((one) => one.low)) / 1.15, Math.max(limit ?? 0, ...points.map((one) => one.high)) * 1.15];
  const marks = chance ? [0, 25, 50, 75, 95] : logTicks(...ends);
  const left = 14 + LETTER * Math.max(...marks.map((value) => number(value).length));
  const users = [1, Math.max(points.at(-1).users, 2)];
  const x = (count) => left + ((width - left - RIGHT) * Math.log(Math.max(count, 1))) / Math.log(users[1]);
  const share = (value) => (chance ? value / 100 : Math.log(value / ends[0]) / Math.log(ends[1] / ends[0]));
  const y = (value) => height - BOTTOM - (height - TOP - BOTTOM) * share(value);
  const path = (list, end) => list.map((one, place) => `${place ? "L" : "M"}${x(one.users).toFixed(1)} ${y(one[end]).toFixed(1)}`).join("");
  const band = (low, high) => `${path(points, high)}${path([...points].reverse(), low).replace("M", "L")}Z`;
  const label = labels(left, width, height);
  const floor = height - BOTTOM;
  const spoken = chance ? points.map((one) => `${counted(one)}: ${number(one.value)} %`) : points.map((one) => `${counted(one)}: ${number(one.value)}, ${span(one)}`);
  const parts = [];
  const texts = [];
  const zones = zonesOf(safe, users[1]);
  for (const [kind, from, to] of zones) parts.push(svg("rect", { x: x(from), width: Math.max(x(to) - x(from), 2), y: TOP, height: floor - TOP, class: kind }));
  for (const value of marks) {
    parts.push(svg("line", { x1: left, x2: width - RIGHT, y1: y(value), y2: y(value), class: "grid" }));
    texts.push(svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end", text: chance ? `${value}` : number(value) }));
  }
  for (const count of userTicks(users[0], users[1], width - left)) texts.push(svg("text", { x: Math.min(x(count), width - (LETTER * whole(count).length) / 2 - 1), y: floor + 17, "text-anchor": "middle", text: whole(count) }));
  texts.push(svg("text", { x: (left + width - RIGHT) / 2, y: height - 6, "text-anchor": "middle", text: "people at once (log)" }), svg("text", { x: 0, y: 13, class: "strong", text: chance ? `${unit}, %` : `${unit} (log)` }));
  if (!chance) parts.push(svg("path", { d: band("low", "high"), class: "band" }), points.every((one) => one.inner_low) ? svg("path", { d: band("inner_low", "inner_high"), class: "band inner" }) : null);
  parts.push(svg("path", { d: path(points, "value"), class: "line" }));
  const at = points.find((one) => one.users === here);
  if (at) {
    if (!chance) parts.push(svg("line", { x1: x(here), x2: x(here), y1: y(at.low), y2: y(at.high), class: "whisker" }));
    const words = `${whole(here)}: ${number(at.value)}${chance ? " %" : ` (${span(at)})`}`;
    texts.push(label(words, [[x(here) + 10, y(at.value) - 10], [x(here) - 10, y(at.value) - 10, "end"], [x(here) + 10, y(at.value) + 22], [x(here) - 10, y(at.value) + 22, "end"], [(left + width) / 2, y(at.value) - 10, "middle"], [(left + width) / 2, y(at.value) + 22, "middle"]], { class: "strong halo" }));
  }
  const lines = chance ? [[95, "95 %"], [50, "50 %"]] : limit ? [[limit, limitWords(limit)]] : [];
  for (const [value, words] of lines) {
    parts.push(svg("line", { x1: left, x2: width - RIGHT, y1: y(value), y2: y(value), class: "slo" }));
    if (!chance) texts.push(label(words, [[width - RIGHT - 4, y(value) - 6, "end"], [left + 6, y(value) - 6], [width - RIGHT - 4, y(value) + 15, "end"], [left + 6, y(value) + 15]], { class: "slo-text halo" }));
  }
  // no name of a zone lies on a line
  const heights = [floor - 7, TOP + 14].filter((up) => lines.every(([value]) => Math.abs(y(value) - up + 4) > 10));
  for (const [, from, to, words, short] of zones) {
    const middle = (x(from) + x(to)) / 2;
    const room = Math.max(x(to) - x(from), 0);
    const told = [words, short].find((one) => LETTER * one.length + 6 <= room);
    if (told) texts.push(label(told, heights.map((up) => [middle, up, "middle"]), { class: "halo" }));
  }
  for (const one of points) {
    const dot = svg("circle", { cx: x(one.users), cy: y(one.value), r: one.users === here ? 6 : 3.5, class: one.users === here ? "dot here" : "dot" });
    dot.append(svg("title", { text: chance ? `${counted(one)}: ${number(one.value)} %` : `${counted(one)}: ${number(one.value)} ${unit} (${span(one)})` }));
    parts.push(dot);
  }
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${METRICS[metric][0]}. ${spoken.join("; ")}` }, parts, texts);
}

let redraw = () => {};
let seen = 0;
new ResizeObserver(([entry]) => {
  const width = Math.round(entry.contentRect.width);
  if (width && Math.abs(width - seen) > 8) redraw();
}).observe(document.getElementById("curve"));

export function drawCurve(into, tableInto, rows, safe, here, lacking = "") {
  tableInto.parentElement.hidden = !rows.length;
  if (!rows.length) {
    redraw = () => {};
    into.replaceChildren(el("p", { class: "note", text: lacking }));
    tableInto.replaceChildren();
    return;
  }
  const nearest = el("p", { class: "note nearest" });
  const tell = ({ clientX }) => {
    const away = (dot) => Math.abs(dot.getBoundingClientRect().x + dot.getBoundingClientRect().width / 2 - clientX);
    const [near] = [...place.querySelectorAll("circle")].sort((one, other) => away(one) - away(other));
    if (near) nearest.textContent = near.textContent;
  };
  const place = el("div", { class: "drawing", pointermove: tell, pointerdown: tell });
  const buttons = Object.entries(METRICS).filter(([name]) => name !== "chance" || safe?.curve?.length).map(([name, [title]]) => el("button", { type: "button", class: "small", "aria-pressed": String(name === metric), text: title, click: () => { metric = name; redraw(); buttons.forEach((one) => one.setAttribute("aria-pressed", String(one.textContent === title))); } }));
  redraw = () => {
    seen = Math.round(into.clientWidth);
    place.replaceChildren(chart(rows, safe, here, Math.min(Math.max(seen, 280), 720)));
    nearest.textContent = place.querySelector("circle.here")?.textContent ?? "";
  };
  const key = el("ul", { class: "key" }, [["line-key", "expected"], ["band inner", "50 %"], ["band", "90 %"], ["slo-key", "your limit"]].map(([kind, words]) => el("li", {}, el("i", { class: `k-${kind.replace(" ", "-")}` }), words)));
  into.replaceChildren(el("div", { class: "row" }, buttons), place, nearest, key);
  redraw();
  const range = (field, write = number) => (row) => (row[field] ? `${write(row[field].value)} (${write(row[field].low)} to ${write(row[field].high)})` : "–");
  const columns = [
    ["People", (row) => whole(row.users)],
    ["First token", range("ttft_mean_ms", time), true],
    ["Each further token", range("tpot_mean_ms", time), true],
    ["Tokens/s of each", range("output_tokens_per_s_per_request"), true],
    ["Tokens/s of all", range("output_tokens_per_s"), true],
    ["Run at once", (row) => whole(row.running), true],
  ];
  tableInto.replaceChildren(table(rows, columns, { caption: "Speed over users, with 90 % ranges", here: (row) => row.users === here }));
}
