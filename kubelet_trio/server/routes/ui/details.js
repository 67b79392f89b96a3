// The tabs of a pod that are not its log: details, events, YAML.

import { breakable, button, bytes, copyButton, cores, make, ownCommand, quoted, setClass, setText, since, stateText } from "./dom.js";
import { eventItem } from "./node.js";
import { hashOf } from "./drawer.js";
import { confirm } from "./session.js";
import { Plots, boundsOf, cpuOf, memoryOf } from "./usage.js";

const NANO = 1e9;
const pathOf = ({ namespace, name }) => `pods/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;

function section(title, ...children) {
  return make("section", "", make("h3", "", title), ...children);
}

const WIDE = new Set(["Last exit", "Command", "Environment", "Mounts", "Labels", "Startup probe", "Readiness probe", "Liveness probe"]);

function facts(pairs) {
  const list = make("dl", "facts");
  for (const [name, value] of pairs) {
    if (value === undefined || value === null || value === "") continue;
    const told = make("dd", "");
    told.append(value instanceof Node ? value : breakable(String(value)));
    list.append(make("div", WIDE.has(name) ? "wide" : "", make("dt", "", name), told));
  }
  return list;
}

function commandLine(node, pod, container, verb) {
  const space = pod.namespace === "default" ? [] : ["-n", pod.namespace];
  const name = ["-c", container.name];
  const words = verb === "exec"
    ? ["exec", ...space, ...name, "-it", pod.name, "--", "sh"]
    : ["logs", ...space, ...name, "-f", pod.name];
  return ownCommand(node, ...words);
}

const shares = ({ requests, limits }, name, format) => {
  const words = [];
  if (requests[name] !== undefined) words.push(`request ${format(requests[name])}`);
  if (limits[name] !== undefined) words.push(`limit ${format(limits[name])}`);
  return words.join(", ");
};

class ContainerCard {
  // `restart` is null where nobody may.
  constructor(pod, given, node, restart) {
    this.state = make("span");
    this.more = make("p", "message");
    this.last = make("span");
    this.restarts = make("span");
    this.cpu = make("span");
    this.memory = make("span");
    const kind = given.kind === "main" ? "" : ` ${given.kind}`;
    const log = make("a", "button small", "Log");
    log.href = hashOf(pod, "logs", given.name);
    log.setAttribute("aria-label", `Log of ${given.name}`);
    const links = make("span", "tools", log);
    if (restart) {
      const shell = make("a", "button small", "Terminal");
      shell.href = hashOf(pod, "terminal", given.name);
      shell.setAttribute("aria-label", `Terminal in ${given.name}`);
      const again = button("Restart", () => restart(given.name), `Restart ${given.name}`);
      again.classList.add("small");
      links.append(shell, again);
    }
    const cpu = shares(given, "cpu", (v) => cores(v / NANO));
    const memory = shares(given, "memory", bytes);
    const lines = ["logs", "exec"].map((verb) => {
      const line = commandLine(node, pod, given, verb);
      return make("li", "", make("code", "", line), copyButton(line, `the ${verb} command of ${given.name}`));
    });
    const inner = facts([
      ["Image", given.image],
      ["Command", given.command.length ? given.command.map(quoted).join(" ") : null],
      ["Ports", given.ports.join(", ")],
      ...Object.entries(given.probes).map(([name, text]) => [`${name[0].toUpperCase()}${name.slice(1)} probe`, text]),
      ["Environment", [...given.env, ...given.envFrom.map((n) => `all of ${n}`)].join(", ")],
      ["Mounts", given.mounts.map((m) => `${m.path} from ${m.volume}${m.readOnly ? " (read-only)" : ""}`).join(", ")],
    ]);
    this.element = make("article", "container",
      make("div", "container-head", make("h4", "", given.name, make("span", "quiet", kind)), this.state, links),
      this.more,
      facts([
        ["Restarts", this.restarts],
        ["CPU", make("span", "", this.cpu, cpu && make("span", "quiet", ` ${cpu}`))],
        ["Memory", make("span", "", this.memory, memory && make("span", "quiet", ` ${memory}`))],
        ["Last exit", this.last],
      ]),
      inner, make("ul", "commands", ...lines));
    this.element.dataset.container = given.name;
  }

  update(status, used, now) {
    const state = status?.state ?? { state: "waiting" };
    const level = state.state === "running" ? (status.isReady || status.kind === "ephemeral" ? "good" : "warn")
      : state.exitCode === 0 ? "quiet" : state.state === "waiting" && /^(PodInitializing|ContainerCreating)?$/.test(state.reason ?? "") ? "warn" : "bad";
    setText(this.state, stateText(state, now));
    setClass(this.state, `state ${level}`);
    setText(this.more, state.message ?? "");
    this.more.hidden = !state.message;
    setText(this.restarts, String(status?.restarts ?? 0));
    setText(this.last, status?.last ? stateText(status.last, now) + (status.last.message ? `: ${status.last.message}` : "") : "–");
    const cpu = cpuOf(used);
    const memory = memoryOf(used);
    setText(this.cpu, cpu === null ? "–" : cores(cpu));
    setText(this.memory, memory === null ? "–" : bytes(memory));
  }
}

function table(label, heads, rows) {
  const head = make("tr", "", ...heads.map((h) => { const th = make("th", "", h); th.scope = "col"; return th; }));
  const body = rows.map((cells) => make("tr", "", ...cells.map((cell, i) => {
    const td = make("td", "", cell instanceof Node ? cell : breakable(String(cell)));
    td.dataset.label = heads[i];
    return td;
  })));
  const found = make("table", "plain", make("thead", "", head), make("tbody", "", ...body));
  found.setAttribute("aria-label", label);
  return found;
}

// Returns what restarts a container, "" for all of the pod, after a question.
function restarting({ page: { session }, at }, done) {
  return async (name) => {
    const what = name || "all containers";
    const explanation = `${name ? `The container ${name}` : "Each container"} of ${at.namespace}/${at.name} is stopped within the grace period and started again in place. The pod keeps its address and its volumes.`;
    if (!(await confirm(`Restart ${what}?`, explanation, "Restart"))) return;
    setText(done, `Restarting ${what}…`);
    try {
      const query = name ? `?container=${encodeURIComponent(name)}` : "";
      const told = await session.post(`restart/${encodeURIComponent(at.namespace)}/${encodeURIComponent(at.name)}${query}`);
      setClass(done, "done good");
      setText(done, `Restarting: ${told.containers.join(", ")}`);
    } catch (error) {
      setClass(done, "done bad");
      setText(done, `Not restarted: ${error.message}`);
    }
  };
}

export function details(panel, drawer) {
  const { page, at } = drawer;
  const plots = new Plots();
  const why = make("ul", "why");
  const why_box = section("Why it is not ready", why);
  const problems = make("ul", "why");
  const problem_box = section("Its manifest is not in force", problems);
  const boxes = make("div", "containers");
  const volumes = make("div");
  const volume_box = section("Volumes", volumes);
  const conditions = section("Conditions");
  const about = section("Pod");
  const plot_box = make("div", "plots", ...plots.elements);
  const done = make("p", "done");
  done.setAttribute("role", "status");
  const restart = page.session.isIn ? restarting(drawer, done) : null;
  const all = restart ? button("Restart all", () => restart(""), "Restart all containers") : "";
  if (all) all.classList.add("small");
  const container_box = make("section", "", make("div", "tools section-head", make("h3", "grow", "Containers"), all), done, boxes);
  panel.append(problem_box, why_box, plot_box, container_box, volume_box, conditions, about);
  const cards = new Map();
  let told = null;
  let asked = 0;
  let isOver = false;

  function showStatic(pod) {
    const { node } = page.data;
    boxes.replaceChildren(...told.containers.map((given) => {
      const card = new ContainerCard(pod, given, node, restart);
      cards.set(given.name, card);
      return card.element;
    }));
    const labels = Object.entries(told.labels).map(([k, v]) => `${k}=${v}`).join(", ");
    about.replaceChildren(make("h3", "", "Pod"), facts([
      ["QoS class", told.qos], ["Addresses", told.ips.join(", ")], ["Host network", told.hostNetwork ? "yes" : null],
      ["Service account", told.serviceAccount], ["Restart policy", told.restartPolicy],
      ["Grace period", `${told.gracePeriod ?? 30} s`], ["Priority", told.priority], ["Labels", labels], ["UID", told.uid],
    ]));
  }

  function showMoving(now) {
    why.replaceChildren(...told.why.map((text) => make("li", "", text)));
    why_box.hidden = told.why.length === 0;
    conditions.replaceChildren(make("h3", "", "Conditions"), table("Conditions", ["Condition", "Status", "Since", "Reason"],
      told.conditions.map((c) => [c.type, make("span", c.status === "True" ? "good" : "warn", c.status), since(now, c.since) || "–", [c.reason, c.message].filter(Boolean).join(": ") || "–"])));
    conditions.hidden = told.conditions.length === 0;
    const used = new Map((page.store.stats?.get(told.uid)?.volume ?? []).map((v) => [v.name, v]));
    volume_box.hidden = told.volumes.length === 0;
    volumes.replaceChildren(table("Volumes", ["Volume", "Kind", "Used"], told.volumes.map((v) => {
      const use = used.get(v.name);
      const words = use?.usedBytes === undefined ? "–" : bytes(use.usedBytes) + (use.capacityBytes ? ` of ${bytes(use.capacityBytes)}` : "");
      return [v.name, `${v.kind}${v.source ? ` ${v.source}` : ""}`, words];
    })));
  }

  async function ask(pod) {
    try {
      const answer = await fetch(pathOf(at));
      if (!answer.ok || isOver) return;
      const isFirst = told === null;
      told = await answer.json();
      if (isOver) return;
      if (isFirst || told.containers.length !== cards.size) showStatic(pod);
      showMoving(page.data.now);
      showUse(pod, page.data.now);
    } catch { /* The page says itself that the agent does not answer. */ }
  }

  function showUse(pod, now) {
    const stats = page.store.stats?.get(pod.uid);
    for (const status of pod.containers) {
      cards.get(status.name)?.update(status, stats?.containers?.find((c) => c.name === status.name), now);
    }
  }

  return {
    update(pod, now) {
      plots.draw(page.store.of(pod.uid), now, page.seconds, boundsOf(pod));
      page.store.fillPod(pod.uid);
      const own = page.problems?.get(pod.uid) ?? [];
      problems.replaceChildren(...own.map((p) => make("li", "", make("strong", "", breakable(p.where)), ` ${p.message}`)));
      problem_box.hidden = own.length === 0;
      showUse(pod, now);
      if (asked % 3 === 0) ask(pod); // conditions and reasons, every six seconds
      asked += 1;
    },
    close() { isOver = true; },
  };
}

// "Kind/namespace/name" of an event's object, whether or not a static pod's name has its node.
export function events(panel, drawer) {
  const list = make("ol", "events");
  const none = make("p", "quiet", "No events of this pod among the newest of the node.");
  panel.append(list, none);
  return {
    update(pod, now) {
      const name = `Pod/${pod.namespace}/${pod.name}`;
      const own = drawer.page.data.events.filter((event) => event.object === name);
      list.replaceChildren(...own.map((event) => eventItem(event, now, false)));
      list.hidden = own.length === 0;
      none.hidden = own.length > 0;
    },
  };
}

export function yaml(panel, drawer) {
  const text = make("pre", "yaml");
  text.tabIndex = 0;
  text.setAttribute("role", "region");
  text.setAttribute("aria-label", "YAML of the pod");
  const copying = copyButton(() => text.textContent, "YAML");
  const again = button("Reload", ask);
  panel.append(make("div", "tools", make("span", "quiet grow", "Values of environment variables, and others that may be secrets, are left out."), again, copying), text);
  let isOver = false;

  async function ask() {
    try {
      const answer = await fetch(`${pathOf(drawer.at)}?format=yaml`);
      const found = await answer.text();
      if (!isOver) text.textContent = found;
    } catch (error) {
      if (!isOver) text.textContent = `The agent does not answer: ${error.message}`;
    }
  }

  ask();
  return { close() { isOver = true; } };
}
