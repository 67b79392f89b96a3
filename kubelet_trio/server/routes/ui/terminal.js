// A terminal in a container: a command of the owner's, over a WebSocket of `v5.channel.k8s.io`.

import { button, make, say, setClass, setText } from "./dom.js";
import { keyText, pastedText } from "./keys.js";
import { Screen } from "./vt.js";

const STDIN = 0;
const OUTPUT = 1;
const ERROR = 3;
const RESIZE = 4;
const PIECE = 16384; // bytes of input in one message
const MOST_COLUMNS = 300;
const MOST_ROWS = 120;
const KEYS = [["Esc", "\x1b"], ["Tab", "\t"], ["Ctrl-C", "\x03"], ["Ctrl-D", "\x04"], ["↑", "\x1b[A"], ["↓", "\x1b[B"]];
const FLAGS = ["bold", "dim", "italic", "underline", "strike", "inverse"];
const encoder = new TextEncoder();

// The words of a command line: blanks divide them, quotes and backslashes keep them together.
export function wordsOf(line) {
  const found = [];
  const pattern = /\s*((?:[^\s'"\\]|'[^']*'|"(?:[^"\\]|\\.)*"|\\.)+)/gy;
  for (let match; (match = pattern.exec(line));) found.push(match[1].replace(/'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)/g, (_, single, double, one) => single ?? double?.replace(/\\(.)/g, "$1") ?? one));
  return found;
}

// How a command ended, from the metav1.Status of its outcome.
export function outcomeOf(status) {
  if (status.status === "Success") return [0, "The command has ended with exit code 0."];
  const code = status.details?.causes?.find((cause) => cause.reason === "ExitCode")?.message;
  if (code !== undefined) return [Number(code), `The command has ended with exit code ${code}.`];
  return [null, `The command could not run: ${(status.message ?? "").replace(/^Internal error occurred: /, "")}`];
}

function hsl([red, green, blue]) {
  const [r, g, b] = [red / 255, green / 255, blue / 255];
  const most = Math.max(r, g, b);
  const range = most - Math.min(r, g, b);
  const light = most - range / 2;
  const hue = !range ? 0 : most === r ? ((g - b) / range) % 6 : most === g ? (b - r) / range + 2 : (r - g) / range + 4;
  return [Math.round(hue * 60), `${Math.round(100 * (range ? range / (1 - Math.abs(2 * light - 1)) : 0))}%`, `${Math.round(100 * light)}%`];
}

function runOf([text, style, isWide]) {
  const names = ["run", ...FLAGS.filter((name) => style[name])];
  const run = make("span", "", text);
  if (isWide) names.push("wide");
  if (style.hidden) names.push("hidden-text");
  for (const [letter, colour] of [["f", style.fg], ["b", style.bg]]) {
    if (Array.isArray(colour)) {
      names.push(`${letter}x`);
      hsl(colour).forEach((value, at) => run.style.setProperty(`--${letter}${"hsl"[at]}`, value));
    } else if (colour !== null) names.push(`${letter}${colour}`);
  }
  run.className = names.join(" ");
  return run;
}

// Shows a Screen's rows; each is made anew only when it has changed.
class Display {
  constructor(pane, lines, cursor) {
    Object.assign(this, { pane, lines, cursor });
    this.elements = new WeakMap(); // row -> [element, version]
  }

  // Columns and rows that fit.
  measure() {
    const probe = make("span", "", "0".repeat(50));
    this.lines.append(probe);
    const box = probe.getBoundingClientRect();
    probe.remove();
    const style = getComputedStyle(this.pane);
    const inner = (size, ...edges) => size - edges.reduce((sum, edge) => sum + parseFloat(style[edge]), 0);
    const columns = Math.floor(inner(this.pane.clientWidth, "paddingLeft", "paddingRight") / (box.width / 50));
    const height = parseFloat(getComputedStyle(this.lines).lineHeight);
    const rows = Math.floor(inner(this.pane.clientHeight, "paddingTop", "paddingBottom") / height);
    return [Math.min(Math.max(columns, 10), MOST_COLUMNS), Math.min(Math.max(rows, 3), MOST_ROWS)];
  }

  element(row) {
    let known = this.elements.get(row);
    if (!known) this.elements.set(row, (known = [make("div", "term-row"), -1]));
    if (known[1] !== row.version) {
      known[1] = row.version;
      known[0].replaceChildren(...row.runs().map(runOf));
    }
    return known[0];
  }

  draw(screen, isLive) {
    const isAtEnd = this.pane.scrollTop + this.pane.clientHeight >= this.pane.scrollHeight - 24;
    const rows = screen.main ? screen.lines : [...screen.history, ...screen.lines];
    const wanted = rows.map((row) => this.element(row));
    const kept = new Set(wanted);
    for (const element of [...this.lines.children]) if (!kept.has(element)) element.remove();
    let at = this.lines.firstChild;
    for (const element of wanted) {
      if (element === at) at = at.nextSibling;
      else this.lines.insertBefore(element, at);
    }
    const under = this.element(screen.row);
    this.cursor.hidden = !isLive || !screen.isCursorShown;
    this.cursor.style.left = `calc(${screen.x}ch + ${this.lines.offsetLeft}px)`;
    this.cursor.style.top = `${this.lines.offsetTop + under.offsetTop}px`;
    if (isAtEnd) this.pane.scrollTop = this.pane.scrollHeight;
  }
}

class TerminalView {
  constructor(panel, drawer) {
    this.drawer = drawer;
    this.session = drawer.page.session;
    this.name = drawer.at.container;
    this.names = make("div", "choice");
    this.names.setAttribute("role", "group");
    this.names.setAttribute("aria-label", "Container");
    this.command = make("input");
    Object.assign(this.command, { type: "text", id: "term-command", value: "sh", spellcheck: false, autocomplete: "off", autocapitalize: "off" });
    this.command.setAttribute("aria-label", "Command");
    this.go = button("Start", () => (this.socket ? this.end() : this.start()));
    this.go.id = "term-go";
    this.go.classList.add("strong");
    this.note = make("p", "term-note quiet", "");
    this.note.id = "term-note";
    this.note.setAttribute("role", "status");
    this.hint = make("span", "quiet term-hint", "Shift+Tab leaves the terminal; Ctrl+Shift+C copies.");
    this.hint.id = "term-hint";
    this.input = make("textarea", "term-input");
    Object.assign(this.input, { id: "term-input", spellcheck: false, autocapitalize: "off", autocomplete: "off" });
    this.input.setAttribute("autocorrect", "off");
    this.input.setAttribute("aria-label", "Input of the terminal");
    this.input.setAttribute("aria-describedby", "term-hint");
    this.lines = make("div", "term-lines");
    this.cursor = make("div", "term-cursor");
    this.pane = make("div", "term", this.lines, this.cursor, this.input);
    this.pane.id = "term";
    this.pane.setAttribute("role", "group");
    this.pane.setAttribute("aria-label", "Terminal");
    this.display = new Display(this.pane, this.lines, this.cursor);
    const keys = make("div", "tools term-keys", ...KEYS.map(([word, text]) => {
      const key = button(word, () => { this.send(text); this.input.focus(); }, { "↑": "Arrow up", "↓": "Arrow down" }[word]);
      key.classList.add("small");
      return key;
    }));
    panel.append(make("div", "tools", this.names, this.command, this.go, this.hint), keys, this.note, this.pane);
    this.listen();
    this.tell("Nothing runs yet: Start, or Enter in the command.");
    this.screen = new Screen(...this.display.measure());
    this.cursor.hidden = true;
    this.sizes = new ResizeObserver(() => this.fit());
    this.sizes.observe(this.pane);
  }

  listen() {
    this.command.addEventListener("keydown", (event) => { if (event.key === "Enter" && !this.socket) { event.preventDefault(); this.start(); } });
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("input", (event) => { if (!event.isComposing) this.typed(); });
    this.input.addEventListener("compositionend", () => this.typed());
    this.input.addEventListener("paste", (event) => {
      event.preventDefault();
      this.send(pastedText(event.clipboardData.getData("text/plain"), this.screen.isBracketed));
    });
    this.input.addEventListener("focus", () => this.input.scrollIntoView({ block: "nearest" }));
    this.pane.addEventListener("mouseup", () => { if (!String(window.getSelection())) this.input.focus({ preventScroll: true }); });
  }

  key(event) {
    if (event.isComposing || event.keyCode === 229) return;
    if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "c") {
      event.preventDefault();
      navigator.clipboard.writeText(String(window.getSelection())).then(() => say("copied"), () => say("not copied: the browser does not allow it here"));
      return;
    }
    if (event.shiftKey && /^Page(Up|Down)$/.test(event.key)) {
      event.preventDefault();
      this.pane.scrollBy(0, (event.key === "PageUp" ? -1 : 1) * this.pane.clientHeight * 0.9);
      return;
    }
    if (!this.socket) return; // Tab and Esc are the page's again
    const { key, ctrlKey, altKey, shiftKey, metaKey } = event;
    const text = keyText({ key, ctrlKey, altKey, shiftKey, metaKey, isAltGraph: event.getModifierState("AltGraph") }, this.screen.isApplication);
    if (text === null) return;
    event.preventDefault();
    this.send(text);
  }

  typed() {
    const text = this.input.value;
    this.input.value = "";
    if (text) this.send(text.replace(/\n/g, "\r"));
  }

  update(pod) {
    const running = pod.containers.filter((c) => c.state.state === "running").map((c) => c.name);
    const names = pod.containers.map((c) => c.name);
    if (!this.name) this.name = pod.containers.find((c) => c.kind === "main")?.name ?? names[0] ?? "";
    const key = `${names.join()} ${running.join()} ${this.name} ${Boolean(this.socket)}`;
    if (this.shown === key) return;
    this.shown = key;
    this.names.replaceChildren(...names.map((name) => {
      const one = button(name, () => this.drawer.go("terminal", name));
      one.setAttribute("aria-pressed", String(name === this.name));
      one.disabled = Boolean(this.socket) && name !== this.name;
      return one;
    }));
    this.names.hidden = names.length < 2;
  }

  tell(text, level = "quiet") {
    setText(this.note, text);
    setClass(this.note, `term-note ${level}`);
  }

  start() {
    const words = wordsOf(this.command.value);
    if (!words.length) { this.tell("Name a command, such as sh.", "bad"); return; }
    const { namespace, name } = this.drawer.at;
    const query = words.map((word) => `command=${encodeURIComponent(word)}`).join("&");
    const socket = this.session.socket(`exec/${[namespace, name, this.name].map(encodeURIComponent).join("/")}?${query}`);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.outcome = null;
    this.screen = new Screen(...this.display.measure());
    this.lines.replaceChildren();
    this.draw();
    setText(this.go, "End");
    setClass(this.go, "");
    this.command.disabled = true;
    this.tell(`Starting ${words[0]}…`);
    socket.addEventListener("open", () => {
      this.isOpen = true;
      this.tell(`${words.join(" ")} runs in ${this.name}.`, "good");
      this.sendSize();
      this.input.focus();
    });
    socket.addEventListener("message", (event) => { if (this.socket === socket) this.take(new Uint8Array(event.data)); });
    socket.addEventListener("close", () => { if (this.socket === socket) this.ended(); });
  }

  take(message) {
    if (message[0] === ERROR && message.length > 1) {
      try { this.outcome = outcomeOf(JSON.parse(new TextDecoder().decode(message.subarray(1)))); } catch { /* not for us */ }
    } else if (message[0] === OUTPUT || message[0] === OUTPUT + 1) {
      const answer = this.screen.write(message.subarray(1));
      if (answer) this.send(answer);
      this.draw();
    }
  }

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.display.draw(this.screen, Boolean(this.socket)); this.input.style.top = this.cursor.style.top; });
  }

  send(text) {
    if (!this.isOpen) return;
    const content = encoder.encode(text);
    for (let at = 0; at < content.length; at += PIECE) this.socket.send(new Uint8Array([STDIN, ...content.subarray(at, at + PIECE)]));
    this.pane.scrollTop = this.pane.scrollHeight;
  }

  sendSize() {
    if (this.isOpen) this.socket.send(new Uint8Array([RESIZE, ...encoder.encode(JSON.stringify({ Width: this.screen.columns, Height: this.screen.rows }))]));
  }

  fit() {
    if (!this.pane.clientHeight) return;
    const [columns, rows] = this.display.measure();
    if (columns === this.screen.columns && rows === this.screen.rows) return;
    this.screen.resize(columns, rows);
    this.sendSize();
    if (this.socket) this.draw();
  }

  // Ends the command: the agent hangs up its terminal.
  end() {
    const { socket } = this;
    this.outcome = [null, "Ended here."];
    this.ended();
    socket.close();
  }

  async ended() {
    const [code, words] = this.outcome ?? [null, ""];
    const hadOpened = this.isOpen;
    this.socket = null;
    this.isOpen = false;
    this.command.disabled = false;
    setText(this.go, "Start again");
    setClass(this.go, "strong");
    this.draw();
    if (words) this.tell(words, `ended ${code === 0 ? "good" : code === null ? "warn" : "bad"}`);
    else {
      this.tell(hadOpened ? "The connection has ended: the container, the session or the agent is gone." : "The agent does not start it: too many terminals or actions, or it is gone.", "bad");
      await this.session.ask();
    }
    if (document.activeElement === this.input) this.go.focus();
  }

  close() {
    this.sizes.disconnect();
    cancelAnimationFrame(this.frame);
    const { socket } = this;
    this.socket = null;
    this.isOpen = false;
    socket?.close();
  }
}

export const terminal = (panel, drawer) => new TerminalView(panel, drawer);
