// The curve over users: speed of each user and of all together, with the range as a band.

import { el, number, span, svg, table, time, whole } from "./dom.js";

const WIDTH = 350;
const HEIGHT = 232;
const [RIGHT, TOP, BOTTOM] = [12, 28, 40];
/** Widest that a digit, a comma or a point is below the charts' size of letters. */
const LETTER = 7.7;

/** Round ends of a scale, and where its lines stand. */
export function ticks(most, count = 4) {
  const raw = most / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
  const found = [];
  for (let at = 0; at <= most * 1.0001 + step * 0.999; at += step) found.push(Number(at.toPrecision(6)));
  return found;
}

/** Users below an axis: powers of two that do not run into each other. */
function userTicks(least, most) {
  const found = [];
  for (let at = 1; at <= most; at *= 2) if (at >= least) found.push(at);
  const every = Math.ceil(found.length / 6);
  return found.filter((_, place) => place % every === 0);
}

function chart(rows, field, { title, unit, safe, here }) {
  const points = rows.filter((row) => row[field]).map((row) => ({ users: row.users, ...row[field] }));
  if (!points.length) return el("p", { class: "note", text: `${title}: not known for this plan.` });
  const most = ticks(Math.max(...points.map((one) => one.high)));
  const LEFT = Math.max(48, 12 + LETTER * Math.max(...most.map((value) => number(value).length)));
  const users = [points[0].users, Math.max(points.at(-1).users, points[0].users * 2)];
  const x = (count) => LEFT + ((WIDTH - LEFT - RIGHT) * Math.log(count / users[0])) / Math.log(users[1] / users[0]);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / most.at(-1);
  const path = (list, end) => list.map((one, place) => `${place ? "L" : "M"}${x(one.users).toFixed(1)} ${y(one[end]).toFixed(1)}`).join("");
  const band = `${path(points, "high")}${path([...points].reverse(), "low").replace("M", "L")}Z`;
  const label = `${title}. ${points.map((one) => `${one.users} users: ${number(one.value)}, ${span(one)}`).join("; ")}`;
  const parts = [
    svg("text", { x: 0, y: 13, class: "strong", text: title }),
    svg("text", { x: WIDTH - RIGHT, y: 13, "text-anchor": "end", text: unit }),
    ...most.map((value) =>
      svg("g", {}, svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: value ? "grid" : "axis" }), svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end", text: number(value) })),
    ),
    ...userTicks(users[0], users[1]).map((count) => svg("text", { x: Math.min(x(count), WIDTH - (LETTER * whole(count).length) / 2), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle", text: whole(count) })),
    svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle", text: "users at once" }),
    svg("path", { d: band, class: "band" }),
    svg("path", { d: path(points, "value"), class: "line" }),
  ];
  if (safe && safe >= users[0] && safe <= users[1]) {
    const late = x(safe) > WIDTH * 0.68;
    parts.push(
      svg("line", { x1: x(safe), x2: x(safe), y1: TOP, y2: HEIGHT - BOTTOM, class: "safe" }),
      svg("text", { x: x(safe) + (late ? -6 : 6), y: TOP + 10, "text-anchor": late ? "end" : "start", class: "safe-text", text: `safe: ${whole(safe)}` }),
    );
  }
  for (const one of points) {
    const dot = svg("circle", { cx: x(one.users), cy: y(one.value), r: one.users === here ? 5.5 : 3.5, class: one.users === here ? "dot here" : "dot" });
    dot.append(svg("title", { text: `${one.users} users: ${number(one.value)} ${unit} (${span(one)})` }));
    parts.push(dot);
  }
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, parts);
}

export function drawCurve(into, tableInto, rows, safe, here, lacking = "") {
  tableInto.parentElement.hidden = !rows.length;
  if (!rows.length) {
    into.replaceChildren(el("p", { class: "note", text: lacking }));
    tableInto.replaceChildren();
    return;
  }
  const more = { safe, here };
  const charts = [
    chart(rows, "output_tokens_per_s_per_request", { title: "Each user", unit: "tokens/s", ...more }),
    chart(rows, "output_tokens_per_s", { title: "All users together", unit: "tokens/s", ...more }),
    chart(rows.map((row) => ({ ...row, ttft: scaled(row.ttft_mean_ms) })), "ttft", { title: "Time to the first token", unit: "s", ...more }),
  ];
  const marked = charts.some((one) => one.querySelector("line.safe"));
  const words = "The band is the 90 % range." + (marked ? " Dashed: users for whom every limit holds at the bad end of the range." : "");
  into.replaceChildren(...charts, el("p", { class: "note", text: words }));
  const range = (field, write = number) => (row) => (row[field] ? `${write(row[field].value)} (${write(row[field].low)} to ${write(row[field].high)})` : "–");
  const columns = [
    ["Users", (row) => whole(row.users)],
    ["First token", range("ttft_mean_ms", time), true],
    ["Each further token", range("tpot_mean_ms", time), true],
    ["Tokens/s of a user", range("output_tokens_per_s_per_request"), true],
    ["Tokens/s of all", range("output_tokens_per_s"), true],
    ["Run at once", (row) => whole(row.running), true],
  ];
  tableInto.replaceChildren(table(rows, columns, { caption: "Speed over users, with 90 % ranges", here: (row) => row.users === here }));
}

function scaled(figure) {
  return figure && { value: figure.value / 1000, low: figure.low / 1000, high: figure.high / 1000 };
}
