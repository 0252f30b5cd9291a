// All formats of the model on this machine, one question for each, drawn as they come.

import { ask, at, el, number, span, time, whole } from "./dom.js";
import { eachLines, limitWords, verdictWords } from "./verdict.js";
import { modelOf } from "./combo.js";
import { arithmeticOf } from "./arithmetic.js";
import { asked } from "./state.js";
import { opens } from "./words.js";

const FIRST = 8;
/** Time between the answer and the questions of its table [ms]. */
const PAUSE = 300;

/** Formats of the model by precision; the one of the answer is first asked. */
function ordered(entry, chosen) {
  const all = [...entry.checkpoints].sort((one, other) => entry.bits[other] - entry.bits[one]);
  const near = all.indexOf(chosen);
  // of many formats those around the chosen one
  const start = Math.min(Math.max(near - FIRST / 2, 0), Math.max(all.length - FIRST, 0));
  return { near: all.slice(start, start + FIRST), rest: [...all.slice(0, start), ...all.slice(start + FIRST)] };
}

function row(name, bits, answer, users, { chosen, take, sums }) {
  const cells = (...found) => found.map((one) => el("td", { class: "n" }, one));
  const head = el("th", { scope: "row" }, name, el("small", { text: ` ${number(bits)} bits` }));
  if (answer.refused) return el("tr", { class: "no" }, head, el("td", { colspan: 5, text: answer.refused }), el("td"));
  const found = answer.users.find((one) => one.users === users);
  const load = found?.output_tokens_per_s_per_request;
  const short = answer.memory?.short_gib > 0 ? `${number(answer.memory.short_gib)} GiB short on an accelerator` : answer.unknown[0] ?? "";
  const fits = answer.safe;
  const limits = fits && limitWords(fits);
  const pool = answer.memory?.requests_held && `The KV pool holds ${whole(answer.memory.requests_held)} requests: ${whole(answer.memory.kv_pool_tokens.value)} / ${whole(answer.question.input_tokens + answer.question.output_tokens)} tokens.`;
  const chance = fits && found?.ttft_mean_ms && `Probability that ${whole(users)} users stay within ${limits}; expected ${time(found.tpot_mean_ms?.value)} and ${time(found.ttft_mean_ms.value)}.`;
  return el(
    "tr",
    { class: chosen ? "here" : fits ? "" : "no" },
    head,
    el("td", {}, opens(verdictWords(answer), [chance, !fits && answer.headline], () => sums(fits ? "safe" : "pool"))),
    el("td", {}, answer.question.engine, el("small", { text: ` ${answer.evidence}` })),
    ...(fits ? cells(opens(whole(fits.users), [`Users within ${limits} with ${Math.round(100 * fits.probability)} % probability.`, pool], () => sums("safe")), opens(whole(fits.expected), [`Users within ${limits} at the expected speed.`, pool], () => sums("safe")), load ? opens(`${number(load.value)} (${span(load)})`, eachLines(found), () => sums("tpot")) : "–") : [el("td", { class: "n", colspan: 3, text: short })]),
    el("td", {}, chosen ? "shown" : el("button", { type: "button", class: "small", text: "Use", "aria-label": `Use ${name}`, click: () => take({ weights: name }) })),
  );
}

/** Draw the table; nothing waits for it. */
export async function drawFormats(answer, state, catalogue, users, signal, take) {
  const entry = modelOf(answer.question.model, catalogue);
  const into = at("formats");
  const known = entry?.checkpoints.length > 1;
  into.closest("section").hidden = !known;
  delete into.dataset.done;
  if (!known) return;
  const { near, rest } = ordered(entry, answer.question.checkpoint);
  const body = el("tbody");
  const heads = ["Format", "Answer", "Engine, evidence", "Sure for", "Expected", `Each of ${whole(users)}, tok/s`, ""];
  const more = el("button", { type: "button", class: "small", text: `${rest.length} more ${rest.length === 1 ? "format" : "formats"}`, click: () => { more.remove(); fill(rest); } });
  into.replaceChildren(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Formats, table" }, el("table", {}, el("caption", { class: "sr", text: "Formats of the model on this machine" }), el("thead", {}, el("tr", {}, heads.map((text, place) => (text ? el("th", { scope: "col", class: place > 2 ? "n" : null, text }) : el("td"))))), body)));
  async function fill(names, pause = 0) {
    const places = names.map((name) => {
      const place = el("tr", {}, el("th", { scope: "row", text: name }), el("td", { colspan: 6, text: "…" }));
      body.append(place);
      return place;
    });
    // a next change of the question is answered first
    await new Promise((done) => setTimeout(done, pause));
    if (signal.aborted) return;
    for (const [number, name] of names.entries()) {
      const chosen = name === answer.question.checkpoint;
      const own = { ...state, model: entry.name, weights: name };
      for (const degree of ["tp", "pp", "dp", "ep"]) if (!chosen) delete own[degree];
      const question = { ...asked(own), users, changes: false };
      const found = chosen ? answer : await ask("v1/fit", question, signal).catch((error) => ({ refused: error.message }));
      if (signal.aborted) return;
      places[number].replaceWith(row(name, entry.bits[name], found, users, { chosen, take, sums: arithmeticOf(chosen ? state : own, users) }));
    }
    into.dataset.done = "true";
  }
  await fill(near, PAUSE);
  if (rest.length && !signal.aborted) into.append(more);
}
