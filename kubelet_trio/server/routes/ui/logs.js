// The log of a container: followed, filtered, searched.

import { button, copy, make, say, setText, times } from "./dom.js";

const KEPT = 3000; // lines on the page
const TAIL = 1000; // lines asked for at first
const STAMP = /^(\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)) ?/;
// Escape sequences: CSI, OSC, and two bytes (ECMA-48).
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])/g;

const settings = { wrap: true, stamps: false, only: false };

function toggle(text, name, act) {
  const box = make("input");
  box.type = "checkbox";
  box.checked = settings[name] ?? false;
  box.id = `log-${name}`;
  box.addEventListener("change", () => { if (name in settings) settings[name] = box.checked; act(box.checked); });
  return { box, element: make("label", "check", box, ` ${text}`) };
}

class LogView {
  constructor(panel, drawer) {
    this.drawer = drawer;
    this.name = drawer.at.container;
    this.lines = make("div", "lines");
    this.pane = make("div", "log", this.lines);
    this.pane.tabIndex = 0;
    this.pane.id = "log-text";
    this.pane.setAttribute("role", "log");
    this.pane.setAttribute("aria-live", "off");
    this.pane.setAttribute("aria-label", "Log");
    this.note = make("p", "note quiet");
    this.search = make("input");
    this.search.type = "search";
    this.search.placeholder = "Search";
    this.search.id = "log-search";
    this.search.setAttribute("aria-label", "Search the log");
    this.found = make("span", "count");
    this.mark = button("", () => this.follow(true));
    this.mark.id = "log-follow";
    this.names = make("div", "choice");
    this.names.setAttribute("role", "group");
    this.names.setAttribute("aria-label", "Container");
    this.hits = [];
    this.hit = -1;
    this.missed = 0;
    this.isFollowing = true;
    panel.append(this.tools(), this.note, this.pane);
    this.listen();
    this.showSettings();
    this.follow(true);
  }

  tools() {
    this.previous = toggle("previous", "previous", () => this.read());
    this.only = toggle("matches only", "only", () => this.seek());
    const stamps = toggle("timestamps", "stamps", () => this.showSettings());
    const wrap = toggle("wrap", "wrap", () => this.showSettings());
    const copying = button("Copy", async () => {
      const shown = [...this.lines.children].filter((l) => !l.hidden).map((l) => (settings.stamps ? `${l.dataset.stamp} ` : "") + l.lastChild.textContent);
      await copy(shown.join("\n"), times(shown.length, "line"));
    });
    this.download = make("a", "button", "Download");
    this.download.id = "log-download";
    return make("div", "log-tools",
      this.names,
      make("div", "tools", this.search, button("↑", () => this.step(-1), "Previous match"), button("↓", () => this.step(1), "Next match"),
        this.found, this.only.element),
      make("div", "tools", this.mark, stamps.element, wrap.element, this.previous.element, copying, this.download));
  }

  listen() {
    this.search.addEventListener("input", () => this.seek());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.step(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape" && this.search.value) { event.preventDefault(); this.search.value = ""; this.seek(); }
    });
    this.pane.addEventListener("keydown", (event) => {
      const act = { "/": () => this.search.focus(), n: () => this.step(1), N: () => this.step(-1), f: () => this.follow(true) }[event.key];
      if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
    });
    this.pane.addEventListener("scroll", () => {
      const isEnd = this.pane.scrollTop + this.pane.clientHeight >= this.pane.scrollHeight - 8;
      if (isEnd !== this.isFollowing) this.follow(isEnd);
    });
  }

  showSettings() {
    this.lines.classList.toggle("wrap", settings.wrap);
    this.lines.classList.toggle("stamps", settings.stamps);
  }

  follow(isOn) {
    this.isFollowing = isOn;
    if (isOn) { this.missed = 0; this.pane.scrollTop = this.pane.scrollHeight; }
    this.tellFollow();
  }

  tellFollow() {
    const word = this.isEnded ? "End of the log" : this.isFollowing ? "● Following" : `○ Paused${this.missed ? `, ${times(this.missed, "new line")}` : ""}: go to the end`;
    setText(this.mark, word);
    this.mark.setAttribute("aria-pressed", String(this.isFollowing && !this.isEnded));
  }

  update(pod) {
    const names = pod.containers.map((c) => c.name);
    if (!this.name) this.name = (pod.containers.find((c) => c.kind === "main") ?? pod.containers[0])?.name ?? "";
    const key = `${names.join()} ${this.name}`;
    if (this.key !== key) {
      this.key = key;
      this.names.replaceChildren(...names.map((name) => {
        const one = button(name, () => this.drawer.go("logs", name));
        one.setAttribute("aria-pressed", String(name === this.name));
        return one;
      }));
      this.names.hidden = names.length < 2;
    }
    const status = pod.containers.find((c) => c.name === this.name);
    this.previous.box.disabled = !status?.last;
    // A container that was restarted has another log.
    const life = `${pod.uid} ${this.name} ${status?.restarts} ${status?.state.state === "waiting" && !status?.last ? "waits" : ""}`;
    if (this.life !== life && !(this.previous.box.checked && this.life)) { this.life = life; this.read(); }
  }

  path(query) {
    const { namespace, name } = this.drawer.at;
    return `logs/${[namespace, name, this.name].map(encodeURIComponent).join("/")}?${query}`;
  }

  async read() {
    this.reading?.abort();
    const mine = (this.reading = new AbortController());
    const previous = this.previous.box.checked;
    this.lines.replaceChildren();
    this.rest = "";
    this.isEnded = false;
    this.count = 0;
    this.seek();
    setText(this.note, "No output yet.");
    this.note.hidden = false;
    this.download.href = this.path(`timestamps=1${previous ? "&previous=1" : ""}`);
    this.download.download = `${this.drawer.at.name}_${this.name}${previous ? "_previous" : ""}.log`;
    try {
      const answer = await fetch(this.path(`timestamps=1&tailLines=${TAIL}&${previous ? "previous=1" : "follow=1"}`), { signal: mine.signal });
      if (!answer.ok) { setText(this.note, await answer.text()); return; }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (mine.signal.aborted) return;
        if (done) break;
        this.take(value);
      }
      if (this.rest) this.take("\n");
      this.isEnded = true;
      if (!this.count) setText(this.note, previous ? "The previous instance wrote nothing." : "The container has ended without output.");
      this.tellFollow();
    } catch (error) {
      if (mine.signal.aborted) return;
      setText(this.note, `The log could not be read on: ${error.message}`);
      this.note.hidden = false;
    }
  }

  take(text) {
    const parts = (this.rest + text).split("\n");
    this.rest = parts.pop();
    if (!parts.length) return;
    const words = this.search.value.toLowerCase();
    const added = parts.slice(-KEPT).map((line) => this.line(line, words));
    this.count += parts.length;
    this.note.hidden = true;
    this.lines.append(...added);
    let isCut = false;
    while (this.lines.childElementCount > KEPT) { this.lines.firstChild.remove(); isCut = true; }
    if (isCut) { setText(this.note, `The last ${KEPT} lines; download the log for all.`); this.note.hidden = false; }
    if (words) this.collect();
    if (this.isFollowing) this.pane.scrollTop = this.pane.scrollHeight;
    else { this.missed += parts.length; this.tellFollow(); }
  }

  line(raw, words) {
    const stamp = STAMP.exec(raw);
    const text = (stamp ? raw.slice(stamp[0].length) : raw).replace(ESCAPES, "").replace(/\r$/, "");
    const body = make("span", "text", text);
    const element = make("div", "line", make("span", "stamp", stamp ? `${stamp[1].slice(0, 23).replace("T", " ").padEnd(23, "0")} ` : ""), body);
    element.dataset.stamp = stamp?.[1] ?? "";
    this.show(element, words);
    return element;
  }

  // Mark the matches of a line, and hide it if it has none and only matches are wanted.
  show(element, words) {
    const body = element.lastChild;
    const text = body.textContent;
    const lower = text.toLowerCase();
    const hasMarks = body.childElementCount > 0;
    if (words && lower.includes(words)) {
      const parts = [];
      let at = 0;
      for (let next = lower.indexOf(words); next >= 0; next = lower.indexOf(words, at)) {
        parts.push(text.slice(at, next), make("mark", "", text.slice(next, next + words.length)));
        at = next + words.length;
      }
      body.replaceChildren(...parts, text.slice(at));
      element.hidden = false;
    } else {
      if (hasMarks) body.textContent = text;
      element.hidden = Boolean(words) && settings.only;
    }
  }

  seek() {
    const words = this.search.value.toLowerCase();
    for (const element of this.lines.children) this.show(element, words);
    this.hit = -1;
    this.collect();
    if (this.isFollowing) this.pane.scrollTop = this.pane.scrollHeight;
  }

  collect() {
    const current = this.hits[this.hit];
    this.hits = [...this.lines.getElementsByTagName("mark")];
    this.hit = current ? this.hits.indexOf(current) : -1;
    this.tell();
  }

  tell() {
    if (!this.search.value) setText(this.found, "");
    else setText(this.found, this.hits.length ? `${this.hit < 0 ? "–" : this.hit + 1} of ${this.hits.length}` : "no match");
  }

  step(by) {
    if (!this.hits.length) { say("no match"); return; }
    this.hits[this.hit]?.classList.remove("current");
    // From the end, upwards: what is looked for is usually recent.
    this.hit = this.hit < 0 ? (by < 0 ? this.hits.length - 1 : 0) : (this.hit + by + this.hits.length) % this.hits.length;
    const mark = this.hits[this.hit];
    mark.classList.add("current");
    this.follow(false);
    mark.scrollIntoView({ block: "center" });
    this.tell();
    say(this.found.textContent);
  }

  close() {
    this.reading?.abort();
  }
}

export const logs = (panel, drawer) => new LogView(panel, drawer);
