// What a terminal sends for keys and pasted text, as xterm does.

const CURSOR = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F", F1: "P", F2: "Q", F3: "R", F4: "S" };
const NUMBERED = { Insert: 2, Delete: 3, PageUp: 5, PageDown: 6, F5: 15, F6: 17, F7: 18, F8: 19, F9: 20, F10: 21, F11: 23, F12: 24 };
const SIMPLE = { Enter: "\r", Backspace: "\x7f", Tab: "\t", Escape: "\x1b" };
const ENDS = /\x1b\[20[01]~/g;

// The control character of a key with Ctrl, or null.
function control(key) {
  if (key === " " || key === "2" || key === "@") return "\0";
  if (/^[a-z[\\\]^_]$/i.test(key)) return String.fromCharCode(key.toUpperCase().charCodeAt(0) & 31);
  return { "/": "\x1f", 3: "\x1b", 4: "\x1c", 5: "\x1d", 6: "\x1e", 7: "\x1f", 8: "\x7f" }[key] ?? null;
}

// What to send for a key; null if the browser has it, and text comes as input.
export function keyText({ key, ctrlKey, altKey, shiftKey, metaKey, isAltGraph = false }, isApplication = false) {
  if (metaKey || (shiftKey && key === "Tab")) return null;
  const modifier = 1 + (shiftKey ? 1 : 0) + (altKey ? 2 : 0) + (ctrlKey ? 4 : 0);
  if (Object.hasOwn(CURSOR, key)) {
    const final = CURSOR[key];
    if (modifier > 1) return `\x1b[1;${modifier}${final}`;
    return isApplication || /^F\d/.test(key) ? `\x1bO${final}` : `\x1b[${final}`;
  }
  if (Object.hasOwn(NUMBERED, key)) return modifier > 1 ? `\x1b[${NUMBERED[key]};${modifier}~` : `\x1b[${NUMBERED[key]}~`;
  const alt = altKey && !isAltGraph ? "\x1b" : "";
  if (Object.hasOwn(SIMPLE, key)) return alt + (key === "Backspace" && ctrlKey ? "\b" : SIMPLE[key]);
  if (isAltGraph || [...key].length !== 1) return null;
  if (ctrlKey) {
    const found = shiftKey ? null : control(key); // Ctrl-Shift is the browser's, for copy and paste
    return found === null ? null : alt + found;
  }
  return alt ? alt + key : null;
}

// Pasted text: lines end as with Enter, and it cannot leave the brackets around it.
export function pastedText(text, isBracketed) {
  let clean = text;
  for (let before = ""; before !== clean;) { before = clean; clean = clean.replace(ENDS, ""); }
  clean = clean.replace(/\r?\n/g, "\r").replace(/[\0-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]/g, "");
  return isBracketed ? `\x1b[200~${clean}\x1b[201~` : clean;
}
