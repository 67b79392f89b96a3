// A terminal without its display: takes what a program writes, and keeps rows of cells.
//
// The part of xterm (ECMA-48, DEC VT220) that shells, editors, pagers and `top` use. What it does not
// know it skips. All that the program decides is bounded: rows that are kept, the length of a
// sequence, marks on a character, answers. It makes no elements; `terminal.js` shows the rows as text.

export const KEPT = 2000; // rows that have scrolled out
const MOST_SEQUENCE = 96; // characters
const MOST_ANSWERS = 16; // to questions in one piece of output
const MOST_CELL = 8; // UTF-16 units: a character with its marks
const MOST = 9999;

export const PLAIN = Object.freeze({ fg: null, bg: null, bold: false, dim: false, italic: false, underline: false, strike: false, inverse: false, hidden: false });
const LINES = { "`": "◆", a: "▒", f: "°", g: "±", h: "▒", i: "␋", j: "┘", k: "┐", l: "┌", m: "└", n: "┼", o: "⎺", p: "⎻", q: "─", r: "⎼", s: "⎽", t: "├", u: "┤", v: "┴", w: "┬", x: "│", y: "≤", z: "≥", "{": "π", "|": "≠", "}": "£", "~": "·" };
const WIDE = [[0x1100, 0x115f], [0x2e80, 0x303e], [0x3041, 0x4dbf], [0x4e00, 0xa4cf], [0xa960, 0xa97f], [0xac00, 0xd7a3], [0xf900, 0xfaff], [0xfe30, 0xfe6f], [0xff00, 0xff60], [0xffe0, 0xffe6], [0x1f300, 0x1f64f], [0x1f680, 0x1f6ff], [0x1f900, 0x1f9ff], [0x20000, 0x3fffd]];
const MARK = /^[\p{Mn}\p{Me}\u200d]$/u;
const UNSEEN = /^[\p{Cf}\p{Cc}]$/u; // among them what would turn the direction of text

export function widthOf(character) {
  const code = character.codePointAt(0);
  if (code < 0x300) return code >= 0x7f && code < 0xa0 || code === 0xad ? -1 : 1;
  if (MARK.test(character)) return 0;
  if (UNSEEN.test(character)) return -1; // not shown at all
  return WIDE.some(([first, last]) => code >= first && code <= last) ? 2 : 1;
}

const clamp = (value, least, most) => Math.min(Math.max(value, least), most);

// Narrowed rows keep their ends, unseen, until they are written to or widened again.
class Row {
  constructor(columns, style = PLAIN) {
    this.columns = columns;
    this.text = Array(columns).fill(" ");
    this.styles = Array(columns).fill(style);
    this.version = 0; // changes with the content
  }

  changed() {
    if (this.text.length > this.columns) this.text.length = this.styles.length = this.columns;
    this.version += 1;
  }

  fill(from, to, style) {
    this.changed();
    if (this.text[from] === "" && from > 0) this.text[from - 1] = " "; // half of a wide character
    if (this.text[to] === "") this.text[to] = " ";
    this.text.fill(" ", from, to);
    this.styles.fill(style, from, to);
  }

  shift(at, count, style) { // to the right, or with a negative count to the left
    this.changed();
    if (this.text[at] === "" && at > 0) this.text[at - 1] = " ";
    const { columns } = this;
    for (const [cells, blank] of [[this.text, " "], [this.styles, style]]) {
      const removed = Math.min(Math.abs(count), columns - at);
      const blanks = Array(removed).fill(blank);
      if (count > 0) { cells.splice(at, 0, ...blanks); cells.length = columns; } else { cells.splice(at, removed); cells.push(...blanks); }
    }
    if (this.text[at] === "") this.text[at] = " "; // half of a wide character
  }

  resize(columns) {
    while (this.text.length < columns) { this.text.push(" "); this.styles.push(PLAIN); }
    this.columns = columns;
    this.version += 1;
  }

  // The row as runs of one style: [text, style, whether it is one wide character]. Without the
  // blanks at its end: they would be copied.
  runs() {
    const found = [];
    let end = this.columns;
    while (end > 0 && this.text[end - 1] === " " && this.styles[end - 1] === PLAIN) end -= 1;
    this.text.slice(0, end).forEach((text, at) => {
      const last = found[found.length - 1];
      const isWide = this.text[at + 1] === "";
      if (text === "") return;
      if (last && !isWide && !last[2] && last[1] === this.styles[at]) last[0] += text;
      else found.push([text, this.styles[at], isWide]);
    });
    return found;
  }
}

export class Screen {
  constructor(columns, rows) {
    this.columns = columns;
    this.rows = rows;
    this.decoder = new TextDecoder();
    this.history = []; // rows that have scrolled out, KEPT at most
    this.reset();
  }

  reset() {
    this.lines = this.blank(this.rows);
    this.main = null; // the lines of the main screen, while a program shows the other one
    this.x = this.y = 0;
    this.style = PLAIN;
    this.top = 0;
    this.bottom = this.rows - 1;
    this.isOrigin = this.isInsert = this.isApplication = this.isBracketed = this.isAtEnd = false;
    this.isWrapping = this.isCursorShown = true;
    this.charsets = ["B", "B"];
    this.charset = 0;
    this.stops = new Set();
    for (let at = 8; at < 1000; at += 8) this.stops.add(at);
    this.saved = null;
    this.last = "";
    this.take = this.ground;
    this.answers = [];
  }

  blank(count, style = PLAIN) {
    return Array.from({ length: count }, () => new Row(this.columns, style));
  }

  get row() { return this.lines[this.y]; }

  // What erased cells look like: the background stays.
  get empty() {
    return this.style.bg === null ? PLAIN : { ...PLAIN, bg: this.style.bg };
  }

  // Takes output; returns what the terminal answers to the program.
  write(bytes) {
    this.answers = [];
    for (const character of this.decoder.decode(bytes, { stream: true })) this.take(character);
    return this.answers.join("");
  }

  answer(text) {
    if (this.answers.length < MOST_ANSWERS) this.answers.push(text);
  }

  resize(columns, rows) {
    if (columns === this.columns && rows === this.rows) return;
    this.columns = columns;
    for (const lines of this.main ? [this.main, this.lines] : [this.lines]) {
      const isShown = lines === this.lines;
      const cursor = isShown ? this : this.saved ?? { y: rows - 1 };
      for (const row of lines) row.resize(columns);
      while (lines.length > rows && lines.length - 1 > cursor.y) lines.pop();
      while (lines.length > rows) {
        const row = lines.shift();
        if (!isShown || !this.main) this.keep(row);
        cursor.y = Math.max(0, cursor.y - 1);
      }
      while (lines.length < rows && this.history.length && (!isShown || !this.main)) {
        const row = this.history.pop();
        row.resize(columns);
        lines.unshift(row);
        cursor.y += 1;
      }
      lines.push(...this.blank(rows - lines.length));
    }
    this.rows = rows;
    this.top = 0;
    this.bottom = rows - 1;
    this.move(this.x, this.y);
  }

  // States: each takes a character.

  ground(character) {
    if (character < " " || character === "\x7f") this.control(character);
    else this.put(character);
  }

  control(character) {
    switch (character) {
      case "\x1b": this.take = this.escape; break;
      case "\r": this.move(0, this.y); break;
      case "\n": case "\x0b": case "\f": this.lineFeed(); break;
      case "\b": this.move(this.x - 1, this.y); break;
      case "\t": this.tab(1); break;
      case "\x0e": this.charset = 1; break;
      case "\x0f": this.charset = 0; break;
      case "\x18": case "\x1a": this.take = this.ground; break;
    }
  }

  escape(character) {
    if (character < " ") { this.control(character); return; }
    this.take = this.ground;
    if (character === "[") { this.sequence = ""; this.take = this.csi; }
    else if ("]PX^_".includes(character)) { this.sequence = character; this.take = this.string; }
    else if ("()*+-./#% ".includes(character)) { this.sequence = character; this.take = this.designate; }
    else ESCAPES[character]?.(this);
  }

  designate(character) {
    this.take = this.ground;
    if (character < " ") this.control(character);
    else if (this.sequence === "(") this.charsets[0] = character;
    else if (this.sequence === ")") this.charsets[1] = character;
    else if (this.sequence === "#" && character === "8") for (const row of this.lines) { row.fill(0, this.columns, PLAIN); row.text.fill("E"); }
  }

  csi(character) {
    if (character < " ") this.control(character);
    else if (character <= "?") this.sequence = (this.sequence + character).slice(0, MOST_SEQUENCE);
    else {
      this.take = this.ground;
      if (character <= "~" && this.sequence.length < MOST_SEQUENCE) this.dispatch(character);
    }
  }

  // A title, a device's own string and the like: skipped, and never kept.
  string(character) {
    if (character === "\x07" || character === "\x9c" || character === "\x18" || character === "\x1a") this.take = this.ground;
    else if (character === "\x1b") this.take = this.stringEnd;
  }

  stringEnd(character) {
    this.take = this.string;
    if (character === "\\") this.take = this.ground;
    else if (character !== "\x1b") { this.take = this.escape; this.escape(character); }
    else this.take = this.stringEnd;
  }

  dispatch(final) {
    const [, prefix, digits, between] = /^([<=>?]?)([\d;:]*)([ -/]*)/.exec(this.sequence);
    if (prefix.length + digits.length + between.length !== this.sequence.length) return;
    const given = digits.split(";").slice(0, 32).map((part) => part.split(":").map((n) => (n === "" ? null : Math.min(Number(n), MOST))));
    const numbers = given.map((part) => part[0]);
    const count = Math.max(1, numbers[0] ?? 1);
    SEQUENCES[prefix + between + final]?.(this, count, numbers, given);
  }

  // What they do.

  put(given) {
    const character = this.charsets[this.charset] === "0" && LINES[given] || given;
    const width = widthOf(character);
    if (width < 0 || width > this.columns) return;
    if (width === 0) { this.mark(character); return; }
    if (this.isAtEnd && this.isWrapping) { this.x = 0; this.lineFeed(); }
    this.isAtEnd = false;
    if (width === 2 && this.x === this.columns - 1) {
      if (!this.isWrapping) return;
      this.row.fill(this.x, this.columns, this.empty);
      this.x = 0;
      this.lineFeed();
    }
    const { row, x } = this;
    if (this.isInsert) row.shift(x, width, this.empty);
    row.fill(x, x + width, this.style);
    row.text[x] = character;
    if (width === 2) row.text[x + 1] = "";
    this.last = given;
    this.x += width;
    if (this.x >= this.columns) { this.x = this.columns - 1; this.isAtEnd = true; }
  }

  mark(character) {
    const { row } = this;
    let at = this.isAtEnd ? this.x : this.x - 1;
    if (row.text[at] === "") at -= 1;
    if (at < 0 || row.text[at].length + character.length > MOST_CELL) return;
    row.text[at] += character;
    row.changed();
  }

  move(x, y, isAbsolute = false) {
    const first = isAbsolute && this.isOrigin ? this.top : 0;
    const last = isAbsolute && this.isOrigin ? this.bottom : this.rows - 1;
    this.x = clamp(x, 0, this.columns - 1);
    this.y = clamp(y + first, first, last);
    this.isAtEnd = false;
  }

  // Up and down stop at the scroll region's edge, if they begin within it.
  vertical(by) {
    const least = this.y >= this.top ? this.top : 0;
    const most = this.y <= this.bottom ? this.bottom : this.rows - 1;
    this.move(this.x, clamp(this.y + by, least, most));
  }

  tab(count) {
    let x = this.x;
    for (; count > 0 && x < this.columns - 1; count -= 1) do x += 1; while (x < this.columns - 1 && !this.stops.has(x));
    for (; count < 0 && x > 0; count += 1) do x -= 1; while (x > 0 && !this.stops.has(x));
    this.move(x, this.y);
  }

  lineFeed() {
    if (this.y === this.bottom) this.scroll(1, this.top);
    else if (this.y < this.rows - 1) this.y += 1;
    this.isAtEnd = false;
  }

  keep(row) {
    this.history.push(row);
    if (this.history.length > KEPT) this.history.shift();
  }

  // Moves the rows from `top` to the region's bottom up, or with a negative count down.
  scroll(count, top, isKept = count > 0 && top === 0 && !this.main) {
    const times = Math.min(Math.abs(count), this.bottom - top + 1);
    for (let n = 0; n < times; n += 1) {
      const [from, to] = count > 0 ? [top, this.bottom] : [this.bottom, top];
      const [gone] = this.lines.splice(from, 1);
      this.lines.splice(to, 0, new Row(this.columns, this.empty));
      if (isKept) this.keep(gone);
    }
  }

  eraseDisplay(what) {
    const { lines, y, empty, columns } = this;
    if (what === 3) { this.history = []; return; }
    this.eraseLine(what);
    lines.forEach((row, at) => { if (what === 2 || (what === 0 && at > y) || (what === 1 && at < y)) row.fill(0, columns, empty); });
    this.isAtEnd = false;
  }

  eraseLine(what) {
    this.row.fill(what === 0 ? this.x : 0, what === 1 ? this.x + 1 : this.columns, this.empty);
    this.isAtEnd = false;
  }

  save() {
    const { x, y, style, isOrigin, isAtEnd, charset } = this;
    this.saved = { x, y, style, isOrigin, isAtEnd, charset, charsets: [...this.charsets] };
  }

  restore() {
    const { x, y, charsets, ...rest } = this.saved ?? { x: 0, y: 0, style: PLAIN, isOrigin: false, isAtEnd: false, charset: 0, charsets: ["B", "B"] };
    this.move(x, y);
    Object.assign(this, rest, { charsets: [...charsets] });
  }

  // The other screen, of editors and pagers: nothing of it is kept.
  alternate(isOn, savesCursor) {
    if (isOn === Boolean(this.main)) return;
    if (isOn && savesCursor) this.save();
    if (isOn) { this.main = this.lines; this.lines = this.blank(this.rows); } else { this.lines = this.main; this.main = null; }
    for (const row of this.lines) row.version += 1;
    if (!isOn && savesCursor) this.restore();
  }

  modes(numbers, isOn, isPrivate) {
    for (const number of numbers) {
      if (!isPrivate) { if (number === 4) this.isInsert = isOn; continue; }
      switch (number) {
        case 1: this.isApplication = isOn; break;
        case 6: this.isOrigin = isOn; this.move(0, 0, true); break;
        case 7: this.isWrapping = isOn; break;
        case 25: this.isCursorShown = isOn; break;
        case 47: case 1047: this.alternate(isOn, false); break;
        case 1048: if (isOn) this.save(); else this.restore(); break;
        case 1049: this.alternate(isOn, true); break;
        case 2004: this.isBracketed = isOn; break;
      }
    }
  }

  // Select Graphic Rendition.
  render(given) {
    const style = { ...this.style };
    for (let at = 0; at < given.length; at += 1) {
      const [number, ...more] = given[at];
      const n = number ?? 0;
      if (n === 0) Object.assign(style, PLAIN);
      else if (n === 38 || n === 48) {
        const parts = more.length ? more : given.slice(at + 1).map((part) => part[0]);
        const [colour, used] = colourOf(parts, more.length > 0);
        if (colour !== undefined) style[n === 38 ? "fg" : "bg"] = colour;
        if (!more.length) at += used;
      } else if (n === 4) style.underline = more[0] !== 0;
      else if (n >= 30 && n <= 37) style.fg = n - 30;
      else if (n >= 40 && n <= 47) style.bg = n - 40;
      else if (n >= 90 && n <= 97) style.fg = n - 82;
      else if (n >= 100 && n <= 107) style.bg = n - 92;
      else Object.assign(style, RENDITIONS[n]);
    }
    const isPlain = Object.keys(PLAIN).every((name) => style[name] === PLAIN[name]);
    this.style = isPlain ? PLAIN : Object.freeze(style);
  }
}

const RENDITIONS = {
  1: { bold: true }, 2: { dim: true }, 3: { italic: true }, 7: { inverse: true }, 8: { hidden: true }, 9: { strike: true }, 21: { underline: true },
  22: { bold: false, dim: false }, 23: { italic: false }, 24: { underline: false }, 27: { inverse: false }, 28: { hidden: false }, 29: { strike: false },
  39: { fg: null }, 49: { bg: null },
};

// A colour after 38 or 48, as 0-15 or [red, green, blue], and how many numbers it took.
function colourOf(parts, isColon) {
  if (parts[0] === 5) {
    const n = parts[1] ?? 0;
    if (n > 255) return [undefined, 2];
    if (n < 16) return [n, 2];
    if (n > 231) return [Array(3).fill(8 + 10 * (n - 232)), 2];
    return [[36, 6, 1].map((unit) => { const level = Math.floor((n - 16) / unit) % 6; return level && 55 + 40 * level; }), 2];
  }
  if (parts[0] === 2) {
    const rgb = (isColon && parts.length > 4 ? parts.slice(2, 5) : parts.slice(1, 4)).map((n) => Math.min(n ?? 0, 255));
    return rgb.length === 3 ? [rgb, 4] : [undefined, parts.length];
  }
  return [undefined, 1];
}

const ESCAPES = {
  7: (s) => s.save(), 8: (s) => s.restore(), c: (s) => s.reset(), H: (s) => s.stops.add(s.x),
  D: (s) => s.lineFeed(), E: (s) => { s.x = 0; s.lineFeed(); },
  M: (s) => { if (s.y === s.top) s.scroll(-1, s.top); else s.move(s.x, s.y - 1); },
};

const within = (s) => s.y >= s.top && s.y <= s.bottom;
const SEQUENCES = {
  A: (s, n) => s.vertical(-n), B: (s, n) => s.vertical(n), C: (s, n) => s.move(s.x + n, s.y), D: (s, n) => s.move(s.x - n, s.y), a: (s, n) => s.move(s.x + n, s.y),
  e: (s, n) => s.vertical(n), E: (s, n) => { s.vertical(n); s.x = 0; }, F: (s, n) => { s.vertical(-n); s.x = 0; },
  G: (s, n) => s.move(n - 1, s.y), "`": (s, n) => s.move(n - 1, s.y), d: (s, n) => s.move(s.x, n - 1, true),
  H: (s, n, [, x]) => s.move((x || 1) - 1, n - 1, true), f: (s, n, [, x]) => s.move((x || 1) - 1, n - 1, true),
  I: (s, n) => s.tab(n), Z: (s, n) => s.tab(-n),
  J: (s, _, [what]) => s.eraseDisplay(what ?? 0), K: (s, _, [what]) => s.eraseLine(what ?? 0),
  L: (s, n) => { if (within(s)) { s.scroll(-n, s.y); s.x = 0; } },
  M: (s, n) => { if (within(s)) { s.scroll(n, s.y, false); s.x = 0; } },
  P: (s, n) => { s.row.shift(s.x, -n, s.empty); s.isAtEnd = false; }, "@": (s, n) => { s.row.shift(s.x, n, s.empty); s.isAtEnd = false; },
  X: (s, n) => { s.row.fill(s.x, Math.min(s.x + n, s.columns), s.empty); s.isAtEnd = false; },
  S: (s, n) => s.scroll(n, s.top), T: (s, n) => s.scroll(-n, s.top),
  b: (s, n) => { if (s.last) for (let at = Math.min(n, s.columns); at > 0; at -= 1) s.put(s.last); },
  g: (s, _, [what]) => { if (what === 3) s.stops.clear(); else if (!what) s.stops.delete(s.x); },
  h: (s, _, numbers) => s.modes(numbers, true, false), l: (s, _, numbers) => s.modes(numbers, false, false),
  "?h": (s, _, numbers) => s.modes(numbers, true, true), "?l": (s, _, numbers) => s.modes(numbers, false, true),
  m: (s, _, __, given) => s.render(given),
  n: (s, _, [what]) => { if (what === 5) s.answer("\x1b[0n"); if (what === 6) s.answer(`\x1b[${s.y + 1 - (s.isOrigin ? s.top : 0)};${s.x + 1}R`); },
  c: (s, _, [what]) => { if (!what) s.answer("\x1b[?1;2c"); }, ">c": (s, _, [what]) => { if (!what) s.answer("\x1b[>0;0;0c"); },
  r: (s, n, [, last]) => { const bottom = Math.min(last || s.rows, s.rows); if (n < bottom) { s.top = n - 1; s.bottom = bottom - 1; s.move(0, 0, true); } },
  s: (s) => s.save(), u: (s) => s.restore(),
  "!p": (s) => { s.isOrigin = s.isInsert = s.isApplication = false; s.isWrapping = s.isCursorShown = true; s.style = PLAIN; s.top = 0; s.bottom = s.rows - 1; s.charsets = ["B", "B"]; s.charset = 0; },
};
