// Searchable lists: an input that finds entries of the catalogue by the name that people use.

import { el } from "./dom.js";
import { said } from "./words.js";

const MOST = 40;
const folded = (text) => text.toLowerCase().replaceAll(/[^a-z0-9.]+/g, " ").trim();

/** Entries that hold every typed word: those that begin with one first, then short names, then accelerators of a listed server. */
function matching(choices, typed) {
  const words = folded(typed).split(" ").filter(Boolean);
  const found = choices.filter((one) => words.every((word) => one.text.includes(word)));
  const rank = (one) => words.filter((word) => ` ${one.text}`.includes(` ${word}`)).length * 100 - one.title.length + (one.served ? 0.5 : 0);
  return words.length ? found.sort((one, other) => rank(other) - rank(one)) : found;
}

/** Machines of typed counts, as in "8 x H200" or "2 x 5090 + 2 x 4090". */
function counted(choices, typed) {
  const parts = typed.split("+").map((one) => /^\s*(\d+)\s*[x×*]\s*(\S.*)$/i.exec(one));
  if (!parts.every(Boolean)) return [];
  const found = parts.map(([, count, words]) => matching(choices.filter((one) => one.counted), words).map((one) => ({ value: `${Number(count)}x${one.value}`, title: `${Number(count)} × ${one.title}` })));
  const first = found.slice(0, -1).map(([best]) => best);
  if (first.includes(undefined)) return [];
  return found.at(-1).map((last) => [...first, last]).map((all) => ({ value: all.map((one) => one.value).join("+"), title: all.map((one) => one.title).join(" + ") }));
}

/** The entry of the catalogue that a name, perhaps with its format, begins with. */
export function modelOf(name, { models }) {
  const fits = models.filter((one) => name === one.name || name.startsWith(`${one.name}-`));
  return fits.sort((one, other) => other.name.length - one.name.length)[0];
}

/** The models as entries of a list; an asked name with its format, or an unknown one, is an entry of its own. */
export function modelChoices(asked, catalogue) {
  const entry = modelOf(asked, catalogue);
  const own = !asked || entry?.name === asked ? [] : [{ value: asked, title: entry ? `${entry.title} ${asked.slice(entry.name.length + 1)}` : asked }];
  return [...own, ...catalogue.models.map((one) => ({ value: one.name, title: one.title, note: `${one.total_b >= 10 ? Math.round(one.total_b) : one.total_b} B parameters`, also: one.aliases.join(" ") }))];
}

const memory = (one) => (one.memory_gib ? `${one.kind === "host" ? `${one.accelerator_count} × ` : ""}${Math.round(one.memory_gib)} GiB` : "memory not published");
export const machineChoices = (hardware) => {
  const served = new Set(hardware.filter((one) => one.kind === "host").map((one) => one.accelerator));
  return hardware.map((one) => ({ value: one.name, title: one.title, note: memory(one), also: one.accelerator, counted: one.kind === "accelerator", served: served.has(one.name) }));
};

/** Make an input a combobox; its value is `input.dataset.value`, and a choice is a `change` event of the input.
 *
 * Emptied text is the entry without a value, where there is one. With `machines` a typed count is part of the value.
 */
export function combobox(input, label, machines = false) {
  const list = el("ul", { id: `${input.id}-list`, role: "listbox", class: "choices", hidden: true, "aria-label": label });
  for (const [name, value] of Object.entries({ role: "combobox", "aria-label": label, "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id, autocomplete: "off", spellcheck: "false", autocapitalize: "off" })) input.setAttribute(name, value);
  input.after(list);
  let choices = [];
  let shown = [];
  let active = -1;
  let typing = false;

  const close = () => {
    list.hidden = true;
    typing = false;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const mark = (place) => {
    active = place;
    [...list.children].forEach((one, number) => one.setAttribute("aria-selected", String(number === place)));
    const one = list.children[place];
    if (!one) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", one.id);
    one.scrollIntoView({ block: "nearest" });
  };
  const open = (typed) => {
    shown = [...(machines ? counted(choices, typed) : []), ...matching(choices, typed)].slice(0, MOST);
    list.replaceChildren(...(shown.length ? shown.map((one, place) => el("li", { id: `${list.id}-${place}`, role: "option", "aria-selected": "false", pointerdown: (event) => { event.preventDefault(); choose(one); } }, el("b", { text: one.title }), one.note && el("small", { text: one.note }))) : [el("li", { role: "option", "aria-disabled": "true", "aria-selected": "false", class: "none", text: choices.length ? "Nothing has this name." : "The list is loading." })]));
    list.hidden = false;
    list.style.left = "";
    const over = list.getBoundingClientRect().right - document.documentElement.clientWidth + 8;
    if (over > 0) list.style.left = `${-over}px`;
    input.setAttribute("aria-expanded", "true");
    mark(typed && shown.length ? 0 : -1);
  };
  const put = (value) => {
    input.dataset.value = value;
    input.value = choices.find((one) => one.value === value)?.title ?? value;
  };
  const choose = (one) => {
    put(one.value);
    close();
    input.dispatchEvent(new Event("change", { bubbles: true }));
  };
  input.addEventListener("focus", () => input.select());
  input.addEventListener("click", () => list.hidden && open(""));
  input.addEventListener("input", () => {
    typing = true;
    open(input.value);
  });
  input.addEventListener("blur", () => {
    const vacant = !input.value && input.dataset.value && choices.find((one) => !one.value);
    if (vacant) return choose(vacant);
    const typed = typing && input.value;
    close();
    put(input.dataset.value ?? "");
    if (typed && typed !== input.value) said(`“${typed}” was not chosen from the list: ${input.value} stays.`);
  });
  input.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move) {
      event.preventDefault();
      if (list.hidden) open("");
      else mark((active + move + shown.length) % Math.max(shown.length, 1));
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (!list.hidden && shown.length) choose(shown[Math.max(active, 0)]);
    } else if (event.key === "Tab" && !list.hidden && shown[active]) {
      choose(shown[active]);
    } else if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation();
      close();
      put(input.dataset.value ?? "");
    }
  });
  return {
    /** Set the entries, each with value, title and note (and other words that find it), and the chosen one.
     *
     * Text that is being typed stays, and a focused value stays selected, so that typing replaces it.
     */
    fill(found, value) {
      choices = found.map((one) => ({ ...one, text: folded(`${one.title} ${one.value} ${one.note ?? ""} ${one.also ?? ""}`) }));
      if (typing) input.dataset.value = value;
      else put(value);
      if (!typing && document.activeElement === input) input.select();
      if (!list.hidden) open(typing ? input.value : "");
    },
  };
}
