// The arithmetic of a number, asked of the service when the number is first opened: figures, cells and the tab have one.

import { ask, el, number, table } from "./dom.js";
import { asked } from "./state.js";
import { lines } from "./words.js";

/** Paragraphs of `/v1/explain` that make a number; N stands for the users. */
const PARAGRAPHS = {
  pool: ["parameters", "weights", "cache", "pool"],
  rate: ["step N", "tpot N", "ttft", "ttft N"],
  safe: ["pool", "step N", "tpot N", "ttft", "ttft N", "interval"],
  tpot: ["step N", "tpot N", "interval"],
  ttft: ["ttft", "ttft N", "interval"],
};

const milliseconds = (seconds) => new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }).format(1000 * seconds);

/** A paragraph as text, and its terms as a table. */
function drawn({ text, terms }) {
  const all = terms.reduce((sum, one) => sum + one.seconds, 0);
  const fitted = terms.some((one) => one.fitted);
  const columns = [["Part", "name"], ...(fitted ? [["Work", "work", true], ["Fitted", (one) => one.fitted.replace("time factor", "×"), true]] : []), ["ms", (one) => milliseconds(one.seconds), true], ["Share", (one) => `${number(Math.round((100 * one.seconds) / all))} %`, true]];
  const told = lines([`${text[0].toUpperCase()}${text.slice(1)}.`]);
  return terms.length ? [...told, el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Parts of the time, table" }, table(terms, columns))] : told;
}

/** The arithmetic of a question at a number of users: of one of its numbers, or of all. It is asked for once. */
export function arithmeticOf(state, users) {
  const question = { ...asked(state), users: users === 1 ? [1] : [1, users], changes: false };
  let found = null;
  return async (name) => {
    const { parts } = await (found ??= ask("v1/explain", question));
    const names = name ? PARAGRAPHS[name].map((one) => one.replace("N", users)) : Object.keys(parts);
    return el("div", { class: "terms" }, names.filter((one) => parts[one]).flatMap((one) => drawn(parts[one])));
  };
}
