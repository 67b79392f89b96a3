// The node page. What the agent tells is put in as text only, never as HTML.
"use strict";

const PERIOD = 2000; // ms between two looks
const KEPT = 150; // points of a plot: five minutes
const LOG_KEPT = 2 ** 20; // characters of a log that stay on the page
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function make(tag, name, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children); // strings become text nodes
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Words for numbers

function age(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) return `${s}s`;
  if (s < 7200) return `${Math.floor(s / 60)}m`;
  if (s < 172800) return `${Math.floor(s / 3600)}h`;
  return `${Math.floor(s / 86400)}d`;
}

const since = (now, time) => (time ? age(now - Date.parse(time) / 1000) : "");

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

const cores = (value) => (value < 1 ? `${Math.round(value * 1000)}m` : `${value.toFixed(2)} cores`);
const perSecond = (value) => `${bytes(value)}/s`;

// Plots: the last KEPT values of one or two lines

class Plot {
  constructor(title, format, names = [""]) {
    this.format = format;
    this.names = names;
    this.lines = names.map(() => []);
    this.value = make("span", "value", "–");
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${KEPT - 1} 100`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.paths = names.map((_, i) => this.path(`line-${i + 1}`));
    this.area = this.path("area");
    this.top = make("span");
    this.title = title;
    this.element = make("figure", "plot",
      make("figcaption", "", make("strong", "", title), this.value), this.svg,
      make("div", "scale", make("span", "", "5 min"), this.top, make("span", "", "now")));
  }

  path(name) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", name);
    this.svg.append(path);
    return path;
  }

  // Add one value (null: not known) a line; `most` is the end of the scale if there is one.
  add(values, most) {
    values.forEach((value, i) => {
      this.lines[i].push(Number.isFinite(value) ? value : null);
      if (this.lines[i].length > KEPT) this.lines[i].shift();
    });
    this.most = most;
    const told = values.map((value, i) => (Number.isFinite(value) ? `${this.names[i]} ${this.format(value)}`.trim() : ""));
    setText(this.value, told.filter(Boolean).join(" · ") + (most && told[0] ? ` of ${this.format(most)}` : "") || "–");
  }

  draw() {
    const top = this.most || Math.max(...this.lines.flat().filter((v) => v !== null), 1e-3) * 1.15;
    this.lines.forEach((line, i) => {
      const start = KEPT - line.length;
      let d = "";
      let pen = "M";
      line.forEach((value, x) => {
        if (value === null) { pen = "M"; return; }
        d += `${pen}${start + x} ${(100 - (Math.min(value, top) / top) * 100).toFixed(2)}`;
        pen = "L";
      });
      this.paths[i].setAttribute("d", d);
      const whole = this.lines.length === 1 && line.length > 1 && !line.includes(null);
      if (i === 0) this.area.setAttribute("d", whole ? `${d}L${KEPT - 1} 100L${start} 100Z` : "");
    });
    setText(this.top, `top: ${this.format(top)}`);
    this.svg.setAttribute("aria-label", `${this.title}: ${this.value.textContent}`);
  }
}

// What something uses; a pod whose cgroup does not count CPU uses what its containers do.
function nanoCores(stats) {
  if (stats.cpu?.usageNanoCores !== undefined) return stats.cpu.usageNanoCores;
  const told = (stats.containers ?? []).map((c) => c.cpu?.usageNanoCores).filter((n) => n !== undefined);
  return told.length ? told.reduce((sum, n) => sum + n) : undefined;
}

// The four plots of one thing, from its part of the summary

class Usage {
  constructor() {
    this.cpu = new Plot("CPU", cores);
    this.memory = new Plot("Memory", bytes);
    this.network = new Plot("Network", perSecond, ["in", "out"]);
    this.disk = new Plot("Disk", bytes);
    this.plots = [this.cpu, this.memory, this.network, this.disk];
    this.before = null;
  }

  // `tops`: the ends of the scales of memory and disk, where there are any.
  add(stats, disk, now, ...tops) {
    const nano = nanoCores(stats);
    this.cpu.add([nano === undefined ? null : nano / 1e9]);
    this.memory.add([stats.memory?.workingSetBytes ?? stats.memory?.usageBytes ?? null], tops[0]);
    const [rx, tx] = this.rates(stats.network, now);
    this.network.add([rx, tx]);
    this.disk.add([disk?.usedBytes ?? null], tops[1]);
  }

  rates(network, now) {
    const all = network?.interfaces?.length ? network.interfaces : network ? [network] : [];
    if (!all.length) { this.before = null; return [null, null]; }
    const sum = (name) => all.reduce((total, one) => total + (one[name] ?? 0), 0);
    const seen = { now, rx: sum("rxBytes"), tx: sum("txBytes") };
    const { before } = this;
    this.before = seen;
    if (!before || now <= before.now) return [null, null];
    // A counter that has gone back belongs to another sandbox.
    const rate = (name) => (seen[name] < before[name] ? null : (seen[name] - before[name]) / (now - before.now));
    return [rate("rx"), rate("tx")];
  }
}

// Pods

const STATE_CLASS = { running: "good", waiting: "warn" };
const restartsOf = (pod) => pod.containers.reduce((sum, c) => sum + c.restarts, 0);

function podState(pod) {
  if (pod.isEnding) return ["Terminating", "warn"];
  const stuck = pod.containers.find((c) => c.state.reason && c.state.reason !== "Completed");
  if (pod.phase === "Succeeded") return ["Completed", "quiet"];
  if (pod.reason || stuck) return [pod.reason || stuck.state.reason, pod.phase === "Pending" ? "warn" : "bad"];
  if (pod.phase === "Failed") return ["Failed", "bad"];
  return [pod.phase, pod.isReady ? "good" : "warn"];
}

function stateText(state, now) {
  const words = [state.state];
  if (state.reason) words.push(state.reason);
  if (state.exitCode !== undefined) words.push(`exit ${state.exitCode}`);
  if (state.since) words.push(`${since(now, state.since)}${state.state === "terminated" ? " ago" : ""}`);
  return words.join(", ") + (state.message ? `: ${state.message}` : "");
}

class PodCard {
  constructor() {
    this.usage = new Usage();
    this.parts = Object.fromEntries(["name", "state", "restarts", "cpu", "memory"].map((n) => [n, make("span", n)]));
    this.facts = make("p", "quiet");
    this.rows = make("tbody");
    this.containers = new Map();
    const heads = ["Container", "State", "Restarts", "Last", "CPU", "Memory", "Log"];
    const head = make("tr", "", ...heads.map((h) => make("th", "", h)));
    this.element = make("details", "pod",
      make("summary", "", ...Object.values(this.parts)),
      make("div", "body", this.facts,
        make("table", "containers", make("thead", "", head), this.rows),
        make("div", "plots", ...this.usage.plots.map((p) => p.element))));
    this.element.addEventListener("toggle", () => this.draw());
  }

  update(pod, stats, now) {
    const { parts } = this;
    this.element.dataset.pod = `${pod.namespace}/${pod.name}`;
    if (!parts.name.firstChild) parts.name.append(make("span", "namespace", `${pod.namespace}/`), pod.name);
    const [word, level] = podState(pod);
    setText(parts.state, word);
    parts.state.className = `state ${level}`;
    const ready = pod.containers.filter((c) => c.kind === "main" && c.isReady).length;
    const main = pod.containers.filter((c) => c.kind === "main").length;
    const restarts = restartsOf(pod);
    setText(parts.restarts, `${restarts} restart${restarts === 1 ? "" : "s"}`);
    this.usage.add(stats ?? {}, stats?.["ephemeral-storage"], now);
    setText(parts.cpu, `CPU ${this.usage.cpu.value.textContent}`);
    setText(parts.memory, `Mem ${this.usage.memory.value.textContent}`);
    const facts = [`${ready}/${main} ready`];
    if (pod.ip) facts.push(`IP ${pod.ip}`);
    if (pod.startedAt) facts.push(`started ${since(now, pod.startedAt)} ago`);
    if (pod.message) facts.push(pod.message);
    setText(this.facts, facts.join(" · "));
    this.updateContainers(pod, stats, now);
    this.draw();
  }

  updateContainers(pod, stats, now) {
    const seen = new Set();
    for (const container of pod.containers) {
      const key = `${container.kind}/${container.name}`;
      seen.add(key);
      let row = this.containers.get(key);
      if (!row) {
        row = containerRow(pod, container);
        this.containers.set(key, row);
        this.rows.append(row.element);
      }
      const used = stats?.containers?.find((s) => s.name === container.name);
      const { cells } = row;
      setText(cells.state, stateText(container.state, now));
      const ended = container.state.exitCode ? "bad" : "quiet";
      cells.state.className = STATE_CLASS[container.state.state] ?? ended;
      setText(cells.restarts, String(container.restarts));
      setText(cells.last, container.last ? stateText(container.last, now) : "–");
      const nano = used?.cpu?.usageNanoCores;
      setText(cells.cpu, nano === undefined ? "–" : cores(nano / 1e9));
      const memory = used?.memory?.workingSetBytes ?? used?.memory?.usageBytes;
      setText(cells.memory, memory === undefined ? "–" : bytes(memory));
    }
    for (const [key, row] of this.containers) {
      if (!seen.has(key)) { row.element.remove(); this.containers.delete(key); }
    }
  }

  draw() {
    if (this.element.open) this.usage.plots.forEach((p) => p.draw());
  }
}

function containerRow(pod, container) {
  const cells = {};
  const kind = container.kind === "main" ? "" : ` (${container.kind})`;
  const name = make("td", "", make("strong", "", container.name), kind, make("div", "quiet", container.image));
  const element = make("tr", "", name);
  for (const label of ["state", "restarts", "last", "cpu", "memory"]) {
    const cell = make("td");
    cell.dataset.label = { cpu: "CPU" }[label] ?? label[0].toUpperCase() + label.slice(1);
    cells[label] = make("span");
    cell.append(cells[label]);
    element.append(cell);
  }
  const button = make("button", "", "Log");
  button.type = "button";
  button.setAttribute("aria-label", `Log of ${container.name} in ${pod.name}`);
  button.addEventListener("click", () => openLog(pod, container.name));
  element.append(make("td", "", button));
  return { element, cells };
}

// Logs: followed while the dialog is open

let reading = null;
let shown = null;

function openLog(pod, container) {
  shown = { pod, container };
  byId("log-previous").checked = false;
  setText(byId("log-title"), `${pod.namespace}/${pod.name}: ${container}`);
  byId("log").showModal();
  readLog();
}

async function readLog() {
  reading?.abort();
  const mine = (reading = new AbortController());
  const pane = byId("log-text");
  pane.textContent = "";
  const path = [shown.pod.namespace, shown.pod.name, shown.container].map(encodeURIComponent).join("/");
  const previous = byId("log-previous").checked;
  const query = previous ? "previous=1&tailLines=500" : "follow=1&tailLines=500";
  try {
    const answer = await fetch(`logs/${path}?${query}`, { signal: mine.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done || mine.signal.aborted) break;
      const atEnd = pane.scrollTop + pane.clientHeight >= pane.scrollHeight - 4;
      pane.append(value);
      let length = pane.textContent.length;
      while (length > LOG_KEPT && pane.childNodes.length > 1) {
        length -= pane.firstChild.length;
        pane.firstChild.remove();
      }
      if (atEnd) pane.scrollTop = pane.scrollHeight;
    }
  } catch (error) {
    if (!mine.signal.aborted) pane.append(`\n[the log could not be read on: ${error.message}]\n`);
  }
}

// The rest of the page

function showNode(data) {
  const { node, now } = data;
  setText(byId("node-name"), node.name);
  document.title = `${node.name} · kubelet-trio`;
  const { runtime } = node;
  setText(byId("node-facts"),
    `kubelet-trio ${data.version}, up ${age(now - node.startedAt)} · ${runtime.name || runtime.endpoint} ${runtime.version}`);
  const badges = Object.entries(node.checks).map(([name, problem]) =>
    make("span", `badge ${problem ? "bad" : "good"}`, problem ? `${name}: ${problem}` : `${name} ok`));
  byId("checks").replaceChildren(...badges);
  const problems = node.sources.flatMap((source) => source.problems.map((p) => `${p.where}: ${p.message}`));
  byId("problems").replaceChildren(...problems.map((text) => make("li", "bad", text)));
}

const nodeUsage = new Usage();
byId("node-plots").append(...nodeUsage.plots.map((p) => p.element));
const cards = new Map();

function showUsage({ stats, now }) {
  const { memory } = stats.node;
  const used = memory?.workingSetBytes ?? memory?.usageBytes;
  const top = memory?.availableBytes === undefined || used === undefined ? undefined : memory.availableBytes + used;
  nodeUsage.add(stats.node, stats.node.fs, now, top, stats.node.fs?.capacityBytes);
  nodeUsage.plots.forEach((p) => p.draw());
}

function showPods({ pods, stats, now }) {
  const byUid = new Map((stats.pods ?? []).map((s) => [s.podRef.uid, s]));
  const seen = new Set(pods.map((p) => p.uid));
  for (const [uid, card] of cards) {
    if (!seen.has(uid)) { card.element.remove(); cards.delete(uid); }
  }
  pods.forEach((pod, place) => {
    let card = cards.get(pod.uid);
    if (!card) cards.set(pod.uid, (card = new PodCard()));
    // Moved only if out of place: a moved element loses the focus.
    const there = byId("pods").children[place];
    if (there !== card.element) byId("pods").insertBefore(card.element, there ?? null);
    card.update(pod, byUid.get(pod.uid), now);
  });
  setText(byId("pod-count"), String(pods.length));
  byId("no-pods").hidden = pods.length > 0;
}

function showEvents({ events, now }) {
  const items = events.map((event) => make("li", "",
    make("span", event.type === "Warning" ? "warn" : "quiet", event.type), " ",
    make("strong", "", event.reason), " ",
    make("span", "quiet", `${since(now, event.time)} ago${event.count > 1 ? ` (x${event.count})` : ""}`),
    make("div", "object", event.object), event.message));
  byId("events").replaceChildren(...items);
}

function branch(node) {
  const level = { running: "good", failed: "bad", done: "quiet" }[node.state] ?? "warn";
  const facts = [age(node.age)];
  if (node.restarts) facts.push(`${node.restarts} restart${node.restarts === 1 ? "" : "s"}`);
  const item = make("li", "", make("span", "part", node.name), " ", make("span", level, node.state), " ",
    make("span", "quiet", facts.join(", ")));
  if (node.last_error) item.append(make("div", "bad", node.last_error));
  if (node.children.length) item.append(make("ul", "", ...node.children.map(branch)));
  return item;
}

function show(data) {
  showNode(data);
  showUsage(data);
  showPods(data);
  showEvents(data);
  byId("tree").replaceChildren(make("ul", "", branch(data.tree)));
  document.body.dataset.looks = String(Number(document.body.dataset.looks ?? 0) + 1);
}

async function look() {
  const trouble = byId("trouble");
  try {
    const answer = await fetch("data", { signal: AbortSignal.timeout(15000) });
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
    show(await answer.json());
    trouble.hidden = true;
  } catch (error) {
    setText(trouble, `The agent does not answer: ${error.message}`);
    trouble.hidden = false;
  }
  setTimeout(look, PERIOD);
}

byId("log-close").addEventListener("click", () => byId("log").close());
byId("log-previous").addEventListener("change", readLog);
byId("log").addEventListener("close", () => reading?.abort());
look();
