// The table of pods.

import { bytes, byId, breakable, choice, cores, make, setClass, setText, since } from "./dom.js";
import { Spark } from "./plots.js";

export const restartsOf = (pod) => pod.containers.reduce((sum, c) => sum + c.restarts, 0);

// What a pod's state is called, and how bad it is: bad, warn, good or quiet.
export function podState(pod) {
  if (pod.isEnding) return ["Terminating", "warn"];
  if (pod.phase === "Succeeded") return ["Completed", "quiet"];
  const stuck = pod.containers.find((c) => c.state.reason && c.state.reason !== "Completed" && !(c.kind === "init" && c.isReady));
  const reason = pod.reason || stuck?.state.reason;
  if (reason) return [reason, /^(PodInitializing|ContainerCreating|SchedulingGated)$/.test(reason) ? "warn" : "bad"];
  if (pod.phase === "Failed" || pod.phase === "Unknown") return [pod.phase, "bad"];
  return [pod.phase, pod.isReady ? "good" : "warn"];
}

export function readyOf(pod) {
  const main = pod.containers.filter((c) => c.kind === "main");
  return [main.filter((c) => c.isReady).length, main.length];
}

const SEVERITY = { bad: 3, warn: 2, good: 1, quiet: 0 };
const COLUMNS = [
  // name, title, value to sort by, whether the first click sorts downwards
  ["name", "Name", (row) => row.fullName, false],
  ["ready", "Ready", (row) => row.ready[0] / (row.ready[1] || 1), false],
  ["status", "Status", (row) => row.severity, true],
  ["restarts", "Restarts", (row) => row.restarts, true],
  ["age", "Age", (row) => -Date.parse(row.pod.createdAt ?? 0), false],
  ["cpu", "CPU", (row) => row.usage.cpu.last ?? -1, true],
  ["memory", "Memory", (row) => row.usage.memory.last ?? -1, true],
];

class Row {
  constructor(pod, open) {
    this.cells = Object.fromEntries(COLUMNS.map(([name, title]) => {
      const cell = make(name === "name" ? "th" : "td", name);
      cell.setAttribute("role", name === "name" ? "rowheader" : "cell");
      if (name === "name") cell.scope = "row";
      cell.dataset.label = title;
      return [name, cell];
    }));
    this.link = make("a", "pod", make("span", "namespace", `${pod.namespace}/`), breakable(pod.name));
    this.link.href = `#/pod/${encodeURIComponent(pod.namespace)}/${encodeURIComponent(pod.name)}`;
    this.link.tabIndex = -1;
    this.note = make("span", "note");
    this.note.hidden = true;
    this.cells.name.append(this.link, this.note);
    this.state = make("span");
    this.cells.status.append(this.state);
    this.sparks = {};
    for (const name of ["cpu", "memory"]) {
      this.sparks[name] = new Spark();
      this[name] = make("span", "number");
      this.cells[name].append(this[name], this.sparks[name].svg);
    }
    this.element = make("tr", "", ...Object.values(this.cells));
    this.element.setAttribute("role", "row");
    this.element.dataset.pod = `${pod.namespace}/${pod.name}`;
    this.element.addEventListener("click", (event) => {
      // A selection of text is no click on the row.
      if (!event.target.closest("a") && !String(window.getSelection())) open(this);
    });
  }

  update(pod, usage, problems, now, seconds) {
    this.pod = pod;
    this.usage = usage;
    this.fullName = `${pod.namespace}/${pod.name}`;
    this.ready = readyOf(pod);
    this.restarts = restartsOf(pod);
    const [word, level] = podState(pod);
    this.severity = Math.max(SEVERITY[level], problems ? 2 : 0);
    setText(this.state, word);
    setClass(this.state, `state ${level}`);
    setText(this.cells.ready, this.ready.join("/"));
    setText(this.cells.restarts, String(this.restarts));
    setClass(this.cells.restarts, this.restarts ? "restarts some" : "restarts");
    setText(this.cells.age, since(now, pod.createdAt) || "–");
    const { cpu, memory } = usage;
    setText(this.cpu, cpu.last === null ? "–" : cores(cpu.last));
    setText(this.memory, memory.last === null ? "–" : bytes(memory.last));
    this.sparks.cpu.draw(cpu, now, seconds, 0.005);
    this.sparks.memory.draw(memory, now, seconds, 1024);
    const note = problems ? problems.map((p) => `${p.where}: ${p.message}`).join("\n") : "";
    setText(this.note, note);
    this.note.hidden = !note;
    this.text = [this.fullName, word, pod.ip, ...pod.containers.map((c) => `${c.name} ${c.image}`), note].join(" ").toLowerCase();
  }
}

export class PodList {
  constructor() {
    this.rows = new Map();
    this.table = byId("pods");
    this.body = this.table.tBodies[0];
    this.sorted = ["status", true];
    this.namespace = "";
    this.namespaces = "";
    this.filter = byId("filter");
    this.filter.addEventListener("input", () => this.arrange());
    this.table.tHead.append(this.head());
    this.body.addEventListener("keydown", (event) => this.move(event));
    this.body.addEventListener("focusin", (event) => this.rove(event.target.closest("tr")));
  }

  head() {
    const row = make("tr");
    row.setAttribute("role", "row");
    for (const [name, title, , down] of COLUMNS) {
      const cell = make("th", name);
      cell.scope = "col";
      cell.setAttribute("role", "columnheader");
      const press = make("button", "", title, make("span", "arrow"));
      press.type = "button";
      press.addEventListener("click", () => {
        this.sorted = [name, this.sorted[0] === name ? !this.sorted[1] : down];
        this.arrange();
      });
      cell.append(press);
      row.append(cell);
    }
    return row;
  }

  // `problems`: by UID. `seconds`: what sparklines show.
  show({ pods, now }, store, problems, seconds) {
    const seen = new Set(pods.map((p) => p.uid));
    for (const [uid, row] of this.rows) if (!seen.has(uid)) { row.element.remove(); this.rows.delete(uid); }
    for (const pod of pods) {
      let row = this.rows.get(pod.uid);
      if (!row) this.rows.set(pod.uid, (row = new Row(pod, (r) => r.link.click())));
      row.update(pod, store.of(pod.uid), problems.get(pod.uid), now, seconds);
    }
    this.showNamespaces(pods);
    this.arrange();
  }

  showNamespaces(pods) {
    const counts = new Map();
    for (const pod of pods) counts.set(pod.namespace, (counts.get(pod.namespace) ?? 0) + 1);
    const names = [...counts.keys()].sort();
    if (!counts.has(this.namespace)) this.namespace = "";
    const key = names.map((n) => `${n} ${counts.get(n)}`).join();
    byId("namespaces").hidden = names.length < 2;
    if (key === this.namespaces) return;
    this.namespaces = key;
    const hadFocus = byId("namespaces").contains(document.activeElement);
    choice(byId("namespaces"), [["", "all"], ...names.map((n) => [n, `${n} ${counts.get(n)}`])], this.namespace,
      (name) => { this.namespace = name; this.arrange(); });
    if (hadFocus) byId("namespaces").querySelector("[aria-pressed=true]").focus();
  }

  arrange() {
    const [column, isDown] = this.sorted;
    const value = COLUMNS.find(([name]) => name === column)[2];
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...this.rows.values()].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      const order = x < y ? -1 : x > y ? 1 : 0;
      return (isDown ? -order : order) || (a.fullName < b.fullName ? -1 : 1);
    });
    let place = 0;
    const shown = rows.filter((row) => {
      const isShown = (!this.namespace || row.pod.namespace === this.namespace) && words.every((w) => row.text.includes(w));
      row.element.hidden = !isShown;
      // Moved only if out of place: a moved element loses the focus.
      const there = this.body.children[place];
      if (there !== row.element) this.put(row.element, there);
      place += 1;
      return isShown;
    });
    this.table.tHead.querySelectorAll("th").forEach((cell) => {
      if (cell.classList.contains(column)) cell.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    setText(byId("pod-count"), shown.length === rows.length ? String(rows.length) : `${shown.length} of ${rows.length}`);
    byId("no-pods").hidden = shown.length > 0;
    setText(byId("no-pods"), rows.length ? "No pod matches." : "No pods.");
    this.table.hidden = shown.length === 0;
    if (!this.body.querySelector("tr:not([hidden]) a[tabindex='0']")) this.rove(shown[0]?.element);
  }

  put(element, before) {
    const focused = element.contains(document.activeElement) ? document.activeElement : null;
    this.body.insertBefore(element, before ?? null);
    focused?.focus({ preventScroll: true });
  }

  // One link of the table is reached by Tab, the others by arrows.
  rove(row) {
    if (!row) return;
    this.body.querySelectorAll("a[tabindex='0']").forEach((a) => { a.tabIndex = -1; });
    row.querySelector("a").tabIndex = 0;
  }

  move(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const rows = [...this.body.querySelectorAll("tr:not([hidden])")];
    const at = rows.indexOf(event.target.closest("tr"));
    const to = { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    rows[Math.max(0, Math.min(to, rows.length - 1))]?.querySelector("a").focus();
  }

  // Give the focus back to the row of a pod, after its drawer has closed.
  focus(name) {
    const row = [...this.rows.values()].find((r) => r.fullName === name && !r.element.hidden);
    (row?.link ?? byId("h-pods")).focus();
  }
}
