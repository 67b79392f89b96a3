// The page of several nodes: what each agent tells, the bad first.

import { age, breakable, byId, bytes, cores, make, setText, since, times } from "./dom.js";
import { podState, readyOf, restartsOf } from "./list.js";

const PERIOD = 3000; // ms between two looks
const SEVERITY = { bad: 3, warn: 2, good: 1, quiet: 0 };
const severityOf = (pod) => SEVERITY[podState(pod)[1]];
let nodes = [];

// What is wrong with a node, in words, and how bad it is.
function troubles(node) {
  if (node.error) return [3, [node.error]];
  const failed = Object.entries(node.node.checks).filter(([, problem]) => problem).map(([name, problem]) => `${name}: ${problem}`);
  const manifests = node.node.sources.flatMap((s) => s.problems.map((p) => `${p.where}: ${p.message}`));
  const bad = node.pods.filter((p) => severityOf(p) === 3).length;
  const words = [...failed, ...manifests];
  if (bad) words.push(`${times(bad, "pod")} not well`);
  return [failed.length || bad ? 3 : manifests.length ? 2 : 1, words];
}

function meter(name, used, total, format) {
  if (used === null || used === undefined || !total) return [];
  const bar = make("meter");
  Object.assign(bar, { min: 0, max: total, value: used });
  bar.setAttribute("aria-label", name);
  return [make("span", "quiet", name), bar, make("span", "", `${format(used)} of ${format(total)}`)];
}

function nodeCard(node) {
  const [level, words] = troubles(node);
  const title = make("h3", "");
  if (node.link) {
    const link = make("a", "", node.name);
    link.href = node.link;
    link.target = "_blank";
    link.rel = "noopener noreferrer";
    title.append(link);
  } else title.append(node.name);
  const item = make("li", `node ${level === 3 ? "is-bad" : level === 2 ? "is-warn" : ""}`, title);
  item.dataset.node = node.name;
  if (!node.error) {
    const { runtime } = node.node;
    item.append(make("p", "quiet", `${node.node.name} · ${times(node.pods.length, "pod")} · up ${age(node.now - node.node.startedAt)} · ${runtime.name || runtime.endpoint} ${runtime.version}`),
      make("div", "meters", ...meter("CPU", node.cpu === null ? null : node.cpu / 1e9, node.node.cores, cores), ...meter("Memory", node.memory, node.memoryTotal, bytes)));
  }
  item.append(...words.map((text) => make("p", level === 3 ? "bad" : "warn", text)));
  return { level, name: node.name, item };
}

function podRow(pod, node) {
  const [word, level] = podState(pod);
  const where = node.link ? make("a", "pod") : make("span", "pod");
  where.append(make("span", "namespace", `${pod.namespace}/`), breakable(pod.name));
  if (node.link) {
    where.href = `${node.link}#/pod/${encodeURIComponent(pod.namespace)}/${encodeURIComponent(pod.name)}`;
    where.target = "_blank";
    where.rel = "noopener noreferrer";
  }
  const cells = [["name", where], ["where", node.name], ["ready", readyOf(pod).join("/")], ["status", make("span", `state ${level}`, word)],
    ["restarts", String(restartsOf(pod))], ["age", since(node.now, pod.createdAt) || "–"]];
  return make("tr", "", ...cells.map(([name, content]) => make("td", name, content)));
}

function showPods() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const all = nodes.flatMap((node) => node.pods.map((pod) => ({ pod, node, level: severityOf(pod) })));
  const shown = all.filter(({ pod, node, level }) => {
    const text = `${node.name} ${pod.namespace}/${pod.name} ${podState(pod)[0]} ${pod.ip} ${pod.containers.map((c) => c.image).join(" ")}`.toLowerCase();
    return words.every((w) => text.includes(w)) && (!byId("only-bad").checked || level >= 2);
  });
  const key = ({ pod, node }) => `${pod.namespace}/${pod.name} ${node.name}`;
  shown.sort((a, b) => b.level - a.level || (key(a) < key(b) ? -1 : 1));
  // The focus stays on the pod that has it, though rows are made anew.
  const focused = document.activeElement?.closest?.("#fleet-pods") ? document.activeElement.getAttribute("href") : null;
  byId("fleet-pods").tBodies[0].replaceChildren(...shown.map(({ pod, node }) => podRow(pod, node)));
  if (focused) [...byId("fleet-pods").querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
  setText(byId("pod-count"), shown.length === all.length ? String(all.length) : `${shown.length} of ${all.length}`);
  byId("fleet-pods").hidden = shown.length === 0;
  byId("no-pods").hidden = shown.length > 0;
  setText(byId("no-pods"), all.length ? "No pod matches." : "No pods.");
}

function show() {
  const cards = nodes.map(nodeCard).sort((a, b) => b.level - a.level || (a.name < b.name ? -1 : 1));
  const focused = document.activeElement?.closest?.("[data-node]")?.dataset.node;
  byId("nodes").replaceChildren(...cards.map((c) => c.item));
  if (focused !== undefined) [...byId("nodes").children].find((n) => n.dataset.node === focused)?.querySelector("a")?.focus();
  const unwell = cards.filter((c) => c.level === 3).length;
  setText(byId("facts"), `${times(nodes.length, "node")}, ${unwell ? `${unwell} not well` : "all well"}`);
  showPods();
}

async function look() {
  const trouble = byId("trouble");
  try {
    const answer = await fetch("data", { signal: AbortSignal.timeout(20000) });
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
    ({ nodes } = await answer.json());
    show();
    trouble.hidden = true;
    document.body.dataset.looks = String(Number(document.body.dataset.looks ?? 0) + 1);
  } catch (error) {
    setText(trouble, `kubelet-trio fleet does not answer: ${error.message}`);
    trouble.hidden = false;
  }
  setTimeout(look, PERIOD);
}

byId("filter").addEventListener("input", showPods);
byId("only-bad").addEventListener("change", showPods);
document.addEventListener("keydown", (event) => {
  const filter = byId("filter");
  if (event.key === "/" && event.target !== filter && !event.ctrlKey && !event.metaKey) { event.preventDefault(); filter.focus(); }
  if (event.key === "Escape" && event.target === filter) { filter.value = ""; showPods(); }
});
look();
