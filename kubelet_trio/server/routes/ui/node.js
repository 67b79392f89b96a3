// The node: its facts, checks, problems, events and the supervision tree.

import { age, breakable, byId, make, setText, since, times } from "./dom.js";

export function showNode(data) {
  const { node, now } = data;
  setText(byId("node-name"), node.name);
  document.title = `${node.name} · kubelet-trio`;
  const { runtime } = node;
  setText(byId("node-facts"),
    `kubelet-trio ${data.version}, up ${age(now - node.startedAt)} · ${runtime.name || runtime.endpoint} ${runtime.version}`);
  const chips = Object.entries(node.checks).map(([name, problem]) =>
    make("li", `chip ${problem ? "bad" : "good"}`, problem ? `${name}: ${problem}` : `${name} ok`));
  byId("checks").replaceChildren(...chips);
}

// Problems of manifests by the UID of their pods; what belongs to no pod is told on top.
export function showProblems({ node, pods }) {
  const byPod = new Map();
  const rest = [];
  const names = new Map(pods.map((p) => [`${p.namespace}/${p.name}`, p]));
  for (const problem of node.sources.flatMap((source) => source.problems)) {
    const known = (problem.pods ?? []).map((name) => names.get(name)).filter(Boolean);
    if (!known.length) rest.push(problem);
    for (const { uid } of known) byPod.set(uid, [...(byPod.get(uid) ?? []), problem]);
  }
  const box = byId("problems");
  const items = rest.map(({ where, message }) => make("li", "", make("strong", "", breakable(where)), " ", message));
  if (box.textContent !== items.map((i) => i.textContent).join("")) box.replaceChildren(...items);
  box.hidden = items.length === 0;
  return byPod;
}

export function eventItem(event, now, withObject = true) {
  const count = event.count > 1 ? ` ×${event.count}` : "";
  const item = make("li", event.type === "Warning" ? "warning" : "",
    make("span", "when", since(now, event.time)),
    make("span", `type ${event.type === "Warning" ? "warn" : "quiet"}`, event.type),
    make("strong", "", event.reason + count));
  if (withObject) item.append(make("span", "object", breakable(event.object)));
  item.append(make("span", "message", event.message));
  return item;
}

export function showEvents({ events, now }) {
  const only = byId("only-warnings").checked;
  const shown = events.filter((event) => !only || event.type === "Warning");
  byId("events").replaceChildren(...shown.map((event) => eventItem(event, now)));
  byId("events").parentElement.hidden = shown.length === 0;
  byId("no-events").hidden = shown.length > 0;
}

function branch(node) {
  const level = { running: "good", failed: "bad", done: "quiet" }[node.state] ?? "warn";
  const facts = [age(node.age)];
  if (node.restarts) facts.push(times(node.restarts, "restart"));
  if (node.note) facts.push(node.note);
  const item = make("li", "", make("span", "part", node.name), " ", make("span", level, node.state), " ",
    make("span", "quiet", facts.join(", ")));
  if (node.last_error) item.append(make("div", "bad", node.last_error));
  if (node.children.length) item.append(make("ul", "", ...node.children.map(branch)));
  return item;
}

function count(node, found = { parts: 0, restarts: 0, unwell: 0 }) {
  found.parts += 1;
  found.restarts += node.restarts;
  if (["failed", "backoff"].includes(node.state)) found.unwell += 1;
  node.children.forEach((child) => count(child, found));
  return found;
}

export function showTree({ tree }) {
  const { parts, restarts, unwell } = count(tree);
  setText(byId("tree-facts"), `${times(parts, "part")}, ${times(restarts, "restart")}${unwell ? `, ${unwell} not running` : ""}`);
  if (byId("tree-box").open) byId("tree").replaceChildren(make("ul", "", branch(tree)));
}
