// Memory of each accelerator as a bar: weights, work, KV cache, the free rest and the shortfall.

import { el, number, svg, whole } from "./dom.js";

const HEIGHT = 26;

/** Parts of a rank: [class, name, GiB]. */
export function parts(rank) {
  const work = rank.activation_gib + rank.graphs_gib + rank.communication_gib + rank.reserve_gib;
  const held = rank.weights_total_gib + work + rank.cache_gib;
  const over = Math.max(held - rank.capacity_gib, 0);
  return [
    ["weights", "weights", rank.weights_total_gib],
    ["work", "activations, graphs, buffers", work],
    ["cache", "KV cache", rank.cache_gib],
    ["free", "left free", Math.max(rank.capacity_gib - held, 0)],
    ["over", "too much", over],
  ];
}

let drawn = 0;
/** Patterns of a bar, so that its parts differ in grey too: [kind, width of the period, width of the stroke, angle]. */
function patterns() {
  drawn += 1;
  return [["work", 6, 3, 45], ["cache", 7, 5, 0]].map(([kind, period, stroke, angle]) => {
    const rect = svg("rect", { width: stroke, height: period });
    rect.style.fill = `var(--${kind})`;
    const paper = svg("rect", { width: period, height: period });
    paper.style.fill = "var(--surface)";
    return svg("pattern", { id: `${kind}-${drawn}`, width: period, height: period, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${angle})` }, paper, rect);
  });
}

/** Ranks that hold the same are one bar. */
function groups(ranks) {
  const found = [];
  for (const rank of ranks) {
    const key = parts(rank).map(([, , size]) => size.toFixed(1)).join();
    const last = found.find((one) => one.key === key);
    if (last) last.members.push(rank.rank);
    else found.push({ key, rank, members: [rank.rank] });
  }
  return found;
}

function names(members) {
  if (members.length === 1) return `card ${members[0]}`;
  if (members.length === 2) return `cards ${members[0]} and ${members[1]}`;
  const inRow = members.every((one, place) => one === members[0] + place);
  return inRow ? `cards ${members[0]} to ${members.at(-1)}` : `cards ${members.join(", ")}`;
}

function bar(group) {
  const { rank } = group;
  const shown = parts(rank);
  const held = shown.filter(([kind]) => !["free", "over"].includes(kind)).reduce((sum, [, , size]) => sum + size, 0);
  const most = Math.max(rank.capacity_gib, held);
  const scale = (size) => (100 * size) / most;
  const share = (size) => `${Math.max(scale(size), 0).toFixed(3)}%`;
  const clip = Math.min(rank.capacity_gib, held);
  let left = 0;
  const pieces = [svg("defs", {}, patterns())];
  const fill = (kind) => (["work", "cache"].includes(kind) ? `url(#${kind}-${drawn})` : null);
  for (const [kind, name, size] of shown) {
    if (kind === "over" || size <= 0) continue;
    pieces.push(svg("rect", { x: share(left), y: 0, width: share(scale(size) > 0.6 ? size - most * 0.0015 : size), height: HEIGHT, class: `c-${kind}`, fill: fill(kind) }, svg("title", { text: `${name}: ${number(size)} GiB` })));
    // of what is too much, the part that lies beyond the card has its figure there
    if (scale(Math.min(left + size, clip) - left) > 11 && kind !== "free") pieces.push(svg("text", { x: share(left), dx: 8, y: 17.5, class: kind === "weights" ? "in" : "strong halo", text: number(size) }));
    left += size;
  }
  if (held > rank.capacity_gib) {
    pieces.push(svg("rect", { x: share(clip), y: 0, width: share(held - clip), height: HEIGHT, class: "c-over", opacity: 0.85 }));
    if (scale(held - clip) > 22) pieces.push(svg("text", { x: share(clip), dx: 8, y: 17.5, class: "in", text: `${number(held - clip)} too much` }));
    pieces.push(svg("line", { x1: share(clip), x2: share(clip), y1: 0, y2: HEIGHT, class: "axis", "stroke-width": 3 }));
  }
  const words = shown.filter(([, , size]) => size > 0.005).map(([, name, size]) => `${name} ${number(size)} GiB`).join(", ");
  return el(
    "div",
    { class: "bar" },
    el("span", { text: names(group.members) }),
    svg("svg", { height: HEIGHT, role: "img", "aria-label": `${names(group.members)}: ${words}, of ${number(rank.capacity_gib)} GiB` }, pieces),
    el("span", { class: "sum", text: `${number(held)} of ${number(rank.capacity_gib)} GiB` }),
  );
}

export function drawMemory(into, answer) {
  const { memory } = answer;
  if (!memory || !memory.ranks.length) {
    into.replaceChildren(el("p", { class: "note", text: "The memory of this plan is not known." }));
    return;
  }
  const key = el("ul", { class: "key" }, [["weights", "weights"], ["work", "activations, graphs, buffers"], ["cache", "KV cache"], ["free", "left free"], ...(memory.short_gib > 0 ? [["over", "too much"]] : [])].map(([kind, name]) => el("li", {}, el("i", { class: `c-${kind}` }), name)));
  const pool = memory.kv_pool_tokens;
  const words = [];
  if (memory.short_gib > 0) words.push(`${number(memory.short_gib)} GiB are short on the fullest card.`);
  else words.push(`The cache pool holds ${whole(pool.value)} tokens (${whole(pool.low)} to ${whole(pool.high)}): ${whole(memory.requests_held)} requests of this length.`);
  const host = Math.max(...memory.ranks.map((rank) => rank.host_gib));
  if (host > 0) words.push(`${number(host)} GiB are held in host memory.`);
  if (memory.kv_pool_host_gib > 0) words.push(`${number(memory.kv_pool_host_gib)} GiB of host memory are for the KV cache.`);
  into.replaceChildren(key, el("div", { class: "bars" }, groups(memory.ranks).map(bar)), el("p", { class: "note", text: words.join(" ") }));
}
