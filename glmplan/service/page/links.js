// Links of a machine: the tree of devices and the scale-up network, with the share of each link in a decode step.

import { el, number, svg, table } from "./dom.js";

const STEP = 84;
const GAP = 98;
/** Cards in a row, where nothing but a switch for all joins them. */
const ROW = 10;
const SIZE = [72, 40];
/** Height of the links between accelerators and their scale-up network, and of its box. */
const [DROP, BAR] = [44, 24];
const KINDS = { nvlink: "NVLink", xgmi: "xGMI", hccs: "HCCS", other: "Scale-up" };
/** Height of a line of words, width of a letter of a name and of a detail, at most. */
const LINE = 14;
const [NAME, DETAIL] = [7.4, 6];

function places(parts, network) {
  const children = new Map(parts.map((part) => [part.key, []]));
  const tops = [];
  for (const part of parts) (part.parent && children.has(part.parent) ? children.get(part.parent) : tops).push(part);
  const found = new Map();
  let next = 0;
  let lowest = 0;
  const put = (part, level) => {
    lowest = Math.max(lowest, level);
    const below = children.get(part.key).map((child) => put(child, level + 1));
    const before = found.get(children.get(part.key)[0]?.key);
    const column = below.length ? (below[0] + below.at(-1)) / 2 : next++;
    // how many columns stand below a part: as much room has its box
    found.set(part.key, { column, level, first: before ? before.first : column, last: next - 1 });
    return column;
  };
  tops.forEach((part) => put(part, 0));
  if (lowest === 0 && next > ROW) {
    parts.forEach((part, place) => found.set(part.key, { column: place % ROW, level: Math.floor(place / ROW), first: 0, last: 0 }));
    return { found, width: ROW, lowest: Math.ceil(next / ROW) - 1, gap: SIZE[1] + LINE + 12 + (network ? DROP + BAR : 0) };
  }
  return { found, width: Math.max(next, 1), lowest, gap: GAP };
}

const direct = (key) => key.startsWith("accelerator ") || key.startsWith("scale-up");

/** How busy the links of a part are beside the busiest, in both directions and all phases, [0 to 1]: to its parent, or to the scale-up network. */
function busy(part, loads, network = false) {
  const all = Object.values(loads).flat();
  const mine = all.filter(({ start, end }) => [start, end].includes(part.key) && (network ? direct(start) && direct(end) : [start, end].includes(part.parent)));
  return Math.max(0, ...mine.map((load) => load.share)) / Math.max(1e-9, ...all.map((load) => load.share));
}

/** Colour of a link by the share of the step that transfers take: a full link for 3 % of a step is no bottleneck. */
function colour(relative, step) {
  if (relative <= 0) return "var(--link-idle)";
  const share = relative * step;
  return share < 0.1 ? "var(--weights)" : share < 0.3 ? "var(--link-mid)" : "var(--link-full)";
}

/** Boxes of the scale-up network under the accelerators that it joins, and a link to each. */
function scaleUp({ parts, loads, scale_up: network }, place, step) {
  const cards = parts.filter((part) => part.kind === "accelerator");
  const groups = [];
  for (const [number, card] of cards.entries()) {
    const [x, y] = place(card);
    const domain = Math.floor(number / network.joined);
    const last = groups.at(-1);
    if (last && last.domain === domain && last.y === y) last.cards.push([card, x]);
    else groups.push({ domain, y, cards: [[card, x]] });
  }
  const words = `${KINDS[network.kind]} ${network.topology}, ${number(network.gb_per_s)} GB/s`;
  return groups.flatMap(({ y, cards: joined }) => {
    const [first, last] = [joined[0][1] - SIZE[0] / 2, joined.at(-1)[1] + SIZE[0] / 2];
    const bottom = y + SIZE[1] / 2 + (joined[0][0].stage === null ? 0 : LINE);
    const top = y + SIZE[1] / 2 + LINE + DROP;
    const links = joined.flatMap(([card, x]) => {
      const share = busy(card, loads, true);
      const line = svg("path", { d: `M${x} ${bottom}L${x} ${top}`, "stroke-width": 6, class: "scale-up" });
      line.style.stroke = colour(share, step);
      return [line, share ? svg("text", { x: x + 7, y: top - DROP / 2 + 4, class: "over-line", text: `${Math.round(share * step * 100)} %` }) : null];
    });
    const told = [words, `${KINDS[network.kind]}, ${number(network.gb_per_s)} GB/s`, KINDS[network.kind]].find((text) => NAME * text.length + 8 <= last - first) ?? "";
    return [...links, svg("rect", { x: first, y: top, width: last - first, height: BAR, rx: 6, class: "box" }, svg("title", { text: `${words} each way for each accelerator` })), svg("text", { x: (first + last) / 2, y: top + 16, "text-anchor": "middle", class: "strong", text: told })];
  }).filter(Boolean);
}

function short(text, most) {
  return text.length > most ? `${text.slice(0, Math.max(most - 1, 1))}…` : text;
}

/** A part as the drawing calls it. */
const called = (key) => key.replace(/^accelerator /, "card ");

export function drawLinks(into, found, layout, row) {
  if (!found) {
    into.replaceChildren(el("p", { class: "note", text: "No plan, so no transfers." }));
    return;
  }
  const { parts, loads } = found;
  const step = row?.step_time_breakdown?.links ?? 0;
  const { found: at, width, lowest, gap } = places(parts, found.scale_up);
  const staged = (part) => part.stage !== null && part.stage !== undefined;
  const size = [width * STEP, lowest * gap + SIZE[1] + 8 + (found.scale_up ? LINE + DROP + BAR : parts.some(staged) ? LINE : 0)];
  const place = (part) => {
    const { column, level } = at.get(part.key);
    return [(column + 0.5) * STEP, (part.kind === "accelerator" && gap === GAP ? lowest : level) * gap + SIZE[1] / 2 + 2];
  };
  const byKey = new Map(parts.map((part) => [part.key, part]));
  const lines = [];
  const boxes = [];
  const labels = [];
  for (const part of parts) {
    const [x, y] = place(part);
    const parent = byKey.get(part.parent);
    if (parent) {
      const [x0, y0] = place(parent);
      const share = busy(part, loads);
      const words = [part.link, share ? `${Math.round(share * step * 100)} % of step` : ""].filter(Boolean);
      const top = y - SIZE[1] / 2;
      // where its words stand, a link comes straight down on its part, apart from those of its neighbours
      const bend = top - (words.length ? 13 * words.length + 9 : 0);
      const line = svg("path", { d: `M${x0} ${y0 + SIZE[1] / 2}L${x} ${bend}L${x} ${top}`, "stroke-width": 1.5 + (part.gb_per_s ?? 8) / 18, "stroke-linejoin": "round" });
      line.style.stroke = colour(share, step);
      line.style.fill = "none";
      lines.push(line);
      const middle = [x, y - SIZE[1] / 2 - 10 - 13 * (words.length - 1)];
      words.forEach((text, row) => labels.push(svg("text", { x: middle[0], y: middle[1] + 13 * row, "text-anchor": "middle", class: "over-line", text })));
    }
    const inside = part.kind === "accelerator" ? called(part.key) : part.key;
    const details = staged(part) ? [`stage ${part.stage}`, `rank ${part.rank}`] : [part.label].filter(Boolean);
    const { first, last } = at.get(part.key);
    const room = Math.max(SIZE[0], (last - first + 1) * STEP - 12);
    const wide = Math.min(room, Math.max(SIZE[0], NAME * inside.length + 12, ...details.map((text) => DETAIL * text.length + 12)));
    const high = SIZE[1] + (details.length > 1 ? LINE : 0);
    const box = svg("rect", { x: x - wide / 2, y: y - SIZE[1] / 2, width: wide, height: high, rx: 6, class: "box" }, svg("title", { text: [part.key, part.label, part.link].filter(Boolean).join(", ") }));
    if (staged(part)) {
      box.style.fill = `var(--stage-${part.stage % 6})`;
      box.style.stroke = "none";
    }
    const on = staged(part) ? "on-stage " : "";
    const start = y - SIZE[1] / 2 + (high - LINE * details.length) / 2 + 4;
    boxes.push(box, svg("text", { x, y: start, "text-anchor": "middle", class: `${on}strong`, text: short(inside, Math.floor((wide - 6) / NAME)) }));
    details.forEach((text, row) => boxes.push(svg("text", { x, y: start + LINE * (row + 1), "text-anchor": "middle", class: `${on}tiny`, text: short(text, Math.floor((wide - 6) / DETAIL)) })));
  }
  const rows = Object.entries(loads).flatMap(([phase, list]) => list.map((load) => ({ phase, ...load })));
  const fullest = [...rows].sort((one, other) => other.share - one.share)[0];
  const words = fullest ? `Transfers take ${Math.round(100 * step)} % of a decode step; busiest link: ${called(fullest.start)} to ${called(fullest.end)} in the ${fullest.phase}, ${number(fullest.capacity_gb_per_s)} GB/s.` : found.missing ? `The load of the links is not known: ${found.missing}.` : "This plan has no transfers between accelerators.";
  const drawing = svg("svg", { viewBox: `0 0 ${size[0]} ${size[1]}`, role: "img", "aria-label": `${found.title}. ${words}` }, lines, labels, boxes, found.scale_up ? scaleUp(found, place, step) : []);
  drawing.style.minWidth = `${size[0] * 0.82}px`;
  drawing.style.maxWidth = `${size[0] * 1.15}px`;
  const columns = [["Phase", "phase"], ["From", (row) => called(row.start)], ["To", (row) => called(row.end)], ["Carries", (row) => `${number(row.gb_per_s)} GB/s`, true], ["Of", (row) => `${number(row.capacity_gb_per_s)} GB/s`, true], ["While it transfers", (row) => `${Math.round(row.share * 100)} %`, true]];
  const notes = [...found.between];
  if (found.nodes > 1) notes.push(`one of ${found.nodes} equal nodes is drawn`);
  const group = layout.tp * layout.pp;
  const groups = Math.round(layout.accelerators / group);
  if (!found.missing && groups > 1) notes.push(`the plan has ${groups} groups of ${group === 1 ? "one card" : `${group} cards`}: transfers inside one of them are drawn, none between them`);
  if (found.visible_devices && found.gain_over_worst_order > 1.005) notes.push(`CUDA_VISIBLE_DEVICES=${found.visible_devices}: all-reduce ${number(found.gain_over_worst_order)} times as fast as in the worst of ${found.orders_tried} orders`);
  into.replaceChildren(
    el("p", { class: "note", text: `${found.title}. ${words}` }),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Tree of links" }, drawing),
    notes.length ? el("p", { class: "note", text: notes.join("; ") }) : "",
    rows.length ? el("details", {}, el("summary", { text: "Loads as a table" }), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Loads of links, table" }, table(rows, columns, { caption: "Loads of links" }))) : "",
  );
}
