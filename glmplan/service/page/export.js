// What people take with them: JSON, a picture, a workbook, the command line.

import { svg } from "./dom.js";

export function save(name, content, kind) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight", "font-family", "text-anchor", "paint-order"];

/** A drawing with its colours written into it, so that it looks the same alone. */
function alone(drawing) {
  const copy = drawing.cloneNode(true);
  const from = [drawing, ...drawing.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, place) => {
    const style = getComputedStyle(from[place]);
    for (const name of KEPT) node.setAttribute(name, style.getPropertyValue(name));
    node.removeAttribute("class");
    node.removeAttribute("style");
  });
  return copy;
}

/** One picture of the answer: title, headline, and the drawings of some sections. */
export async function picture(title, lines, drawings) {
  const width = 1100;
  const style = getComputedStyle(document.body);
  const root = getComputedStyle(document.documentElement);
  const paper = root.getPropertyValue("--surface").trim();
  const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width });
  const text = (words, y, size, weight, fill) => svg("text", { x: 30, y, "font-size": size, "font-weight": weight, fill, "font-family": style.fontFamily, text: words });
  let y = 46;
  const content = [text(title, y, 26, 700, style.color)];
  for (const line of lines) content.push(text(line, (y += 28), 16, 400, root.getPropertyValue("--soft").trim()));
  y += 24;
  const [edge, gap] = [30, 20];
  let left = edge;
  let tall = 0;
  const below = () => { y += tall; [left, tall] = [edge, 0]; };
  for (const drawing of drawings) {
    const box = drawing.getAttribute("viewBox");
    // bars have no box of their own: they are as wide as there is room, and their words stand above them
    const [w, h] = box ? box.split(" ").map(Number).slice(2) : [width - 2 * edge, 26];
    // small drawings stand three or two in a row
    const shown = w > 520 || !box ? Math.min(width - 2 * edge, w * 1.4) : w < 380 ? (width - 2 * edge - 2 * gap) / 3 : (width - 2 * edge - gap) / 2;
    if (left > edge && left + shown > width - edge + 1) below();
    if (!box) content.push(text(drawing.getAttribute("aria-label"), (y += 18), 14, 400, root.getPropertyValue("--soft").trim()));
    const copy = alone(drawing);
    const height = (shown * h) / w;
    for (const [name, value] of [["x", left], ["y", box ? y : y + 8], ["width", shown], ["height", height]]) copy.setAttribute(name, value);
    content.push(copy);
    tall = Math.max(tall, height + (box ? 18 : 20));
    left += shown + gap;
    if (!box) below();
  }
  below();
  const height = Math.ceil(y + 12);
  whole.setAttribute("height", height);
  whole.setAttribute("viewBox", `0 0 ${width} ${height}`);
  whole.append(svg("rect", { width, height, fill: paper }), ...content);
  const image = new Image();
  const address = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(whole)], { type: "image/svg+xml" }));
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = width * 2;
  canvas.height = height * 2;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
