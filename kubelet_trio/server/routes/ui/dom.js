// Elements and words. What the agent tells is put in as text only, never as HTML.

export const byId = (id) => document.getElementById(id);

export function make(tag, name, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children); // strings become text nodes
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

export function button(text, act, label) {
  const element = make("button", "", text);
  element.type = "button";
  if (label) element.setAttribute("aria-label", label);
  element.addEventListener("click", act);
  return element;
}

// A long name that may break after its separators, and nowhere else if that suffices.
export function breakable(text) {
  const span = make("span", "breakable");
  for (const part of text.split(/(?<=[/:@._-])/)) span.append(part, document.createElement("wbr"));
  return span;
}

export function setBreakable(element, text) {
  if (element.dataset.text === text) return;
  element.dataset.text = text;
  element.replaceChildren(breakable(text));
}

// Buttons of which one is pressed: `choices` are [value, text]. Returns how to press one.
export function choice(box, choices, chosen, act) {
  const buttons = choices.map(([value, text]) => {
    const one = button(text, () => { press(value); act(value); });
    one.dataset.value = value;
    return one;
  });
  const press = (value) => buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.value === String(value))));
  box.replaceChildren(...buttons);
  press(chosen);
  return press;
}

export function say(text) {
  setText(byId("said"), text);
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied`);
    return true;
  } catch {
    say(`${what} could not be copied: the browser does not allow it here`);
    return false;
  }
}

export function copyButton(text, what) {
  const element = button("Copy", async () => {
    const done = await copy(typeof text === "function" ? text() : text, what);
    element.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => { element.textContent = "Copy"; }, 1500);
  }, `Copy ${what}`);
  element.classList.add("small");
  return element;
}

// Words that a shell takes as they are.
export const quoted = (word) => (/^[\w./:@=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

// The command line of `kubelet-trio` for the agent of this page.
export function ownCommand({ rootDir }, ...words) {
  const root = rootDir === "/var/lib/kubelet" ? [] : ["--root-dir", rootDir];
  return ["kubelet-trio", ...root, ...words].map(quoted).join(" ");
}

// Words for numbers

export function age(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) return `${s}s`;
  if (s < 7200) return `${Math.floor(s / 60)}m`;
  if (s < 172800) return `${Math.floor(s / 3600)}h`;
  return `${Math.floor(s / 86400)}d`;
}

export const since = (now, time) => (time ? age(now - Date.parse(time) / 1000) : "");

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit && value < 9.95 ? value.toFixed(1) : Math.round(value)}\u00a0${units[unit]}`;
}

export function cores(value) {
  if (value < 1) return `${Math.round(value * 1000)}m`;
  return value < 9.995 ? value.toFixed(2).replace(/\.?0+$/, "") : String(Math.round(value));
}

export const perSecond = (value) => `${bytes(value)}/s`;
export const times = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// A container's state in words.
export function stateText(state, now) {
  const words = [state.state];
  if (state.reason && state.reason !== "Completed") words.push(state.reason);
  if (state.exitCode !== undefined) words.push(`exit ${state.exitCode}`);
  if (state.since) words.push(`${since(now, state.since)}${state.state === "terminated" ? " ago" : ""}`);
  return words.join(", ");
}
