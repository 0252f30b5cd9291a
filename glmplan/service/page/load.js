// Kinds of load: people with pauses, requests a second, conversations; their fields, and the question of each.

import { at, Refused } from "./dom.js";

/** Fields of a load beside its amount. */
export const LOAD = ["load", "pause", "turns", "begin"];
/** Fields of a question that stand in the form under another name. */
const SHOWN = { think: "pause", tool_wait: "pause", start: "begin" };
export const shownAs = (amount) => (name) => SHOWN[name] ?? (name === "traffic" ? amount : name);

/** Show the fields of the chosen kind. */
export function showLoad() {
  const kind = at("load").value;
  for (const one of document.querySelectorAll("[data-load]")) one.hidden = !one.dataset.load.split(" ").includes(kind);
  at("pause-words").textContent = kind === "sessions" ? "Pause between turns, s" : "Pause of a person, s";
  at("pause").placeholder = kind === "sessions" ? "5" : "0";
}

/** The load as the service takes it; `amount` is the field of its number. */
export function loadOf(amount) {
  const [kind, count] = [at("load").value, Number(at(amount).value)];
  const whole = Number.isInteger(count) && count >= 1 && count <= 4096;
  if (kind === "rate" ? !(count > 0) : !whole) throw new Refused({ field: amount, message: `Load: type a ${kind === "rate" ? "number above 0" : "whole number from 1 to 4,096"}.` }, 0);
  const given = (names) => Object.fromEntries(Object.entries(names).filter(([, field]) => at(field).value).map(([name, field]) => [name, Number(at(field).value)]));
  if (kind === "rate") return { traffic: `poisson:${count}/s` };
  return kind === "sessions" ? { traffic: `sessions:${count}`, ...given({ turns: "turns", start: "begin", tool_wait: "pause" }) } : { users: count, ...given({ think: "pause" }) };
}
