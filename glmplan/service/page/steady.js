// What somebody is about to press stays where it is: answers that come late wait for it, and the focus is not lost with
// what they replace.

const PRESSED = "button, summary, a, label";
let released = null;
let release = null;

function press(event) {
  if (!event.target.closest?.(PRESSED) || release) return;
  released = new Promise((done) => (release = done));
}

/** The click that belongs to it comes first. */
function letGo() {
  if (!release) return;
  setTimeout(release);
  release = released = null;
}

addEventListener("pointerdown", press, true);
for (const name of ["pointerup", "pointercancel", "dragend"]) addEventListener(name, letGo, true);
// of the window alone: a field that is left by the press says so too
addEventListener("blur", letGo);
// let go outside of the window
addEventListener("pointermove", (event) => event.buttons || letGo(), true);
addEventListener("keydown", (event) => event.key === " " && press(event), true);
addEventListener("keyup", (event) => event.key === " " && letGo(), true);

/** Wait until nothing is pressed. */
export const unpressed = () => released;

const named = (node) => node.getAttribute("aria-label") || node.textContent;
const FOCUSED = "button, summary, a[href], input, select, [tabindex]";
let last = null;

addEventListener("focusin", ({ target }) => {
  const around = [];
  for (let node = target.parentElement; node; node = node.parentElement) if (node.id) around.push(node);
  last = { node: target, tag: target.tagName, name: named(target), around };
});

/** Give the focus to what replaced the element that had it: of the same name, else the next thing of its part. */
function keep() {
  const gone = last && !(last.node.isConnected && last.node.checkVisibility());
  if (!gone || ![null, document.body, last.node].includes(document.activeElement)) return;
  const part = last.around.find((node) => node.isConnected && node.checkVisibility());
  const there = part ? [...part.querySelectorAll(FOCUSED)].filter((node) => node.checkVisibility()) : [];
  const same = there.find((node) => node.tagName === last.tag && named(node) === last.name);
  (same ?? there.find((node) => node.tagName === last.tag) ?? there[0] ?? part)?.focus({ preventScroll: true });
}

new MutationObserver(keep).observe(document.body, { childList: true, subtree: true, attributeFilter: ["hidden"] });
