// Tabs: one panel is shown at a time, arrows move between them; paper has all of them.

const all = [...document.querySelectorAll("[role=tab]")];

/** Show the panel of a tab. */
export function openTab(name) {
  for (const one of all) {
    const chosen = one.getAttribute("aria-controls") === name;
    one.setAttribute("aria-selected", String(chosen));
    one.tabIndex = chosen ? 0 : -1;
    document.getElementById(one.getAttribute("aria-controls")).hidden = !chosen;
  }
  document.dispatchEvent(new CustomEvent("tab", { detail: name }));
}

/** Show the panel that the address names; false where it names none. */
export function openNamedTab() {
  const named = all.map((one) => one.getAttribute("aria-controls")).find((name) => location.hash === `#${name}`);
  if (named) openTab(named);
  return Boolean(named);
}

for (const [place, one] of all.entries()) {
  one.addEventListener("click", () => openTab(one.getAttribute("aria-controls")));
  one.addEventListener("keydown", (event) => {
    const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = all[(to + all.length) % all.length];
    next.focus();
    openTab(next.getAttribute("aria-controls"));
  });
}
