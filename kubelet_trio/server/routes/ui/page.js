// The node page: looks at the agent, and passes what it tells to the parts of the page.

import { byId, choice, setText } from "./dom.js";
import { Drawer } from "./drawer.js";
import { PodList } from "./list.js";
import { showEvents, showNode, showProblems, showTree } from "./node.js";
import { Session } from "./session.js";
import { Plots, Store, memoryOf } from "./usage.js";

const PERIOD = 2000; // ms between two looks

const page = { data: null, store: new Store(), list: new PodList(), seconds: 900 };
const plots = new Plots();
page.session = new Session(() => { if (page.data) show(); page.drawer.refresh(); });
page.drawer = new Drawer(page);

function nodeBounds({ stats, node }) {
  const used = memoryOf(stats.node);
  const free = stats.node.memory?.availableBytes;
  return {
    cpu: { most: node.cores, told: `${node.cores} core${node.cores === 1 ? "" : "s"}` },
    memory: { most: free === undefined || used === null ? undefined : free + used },
    disk: { most: stats.node.fs?.capacityBytes },
  };
}

function show() {
  const { data, store } = page;
  const problems = showProblems(data);
  page.problems = problems;
  showNode(data);
  page.session.show(data);
  plots.draw(store.node, data.now, page.seconds, nodeBounds(data));
  page.list.show(data, store, problems, page.seconds);
  showEvents(data);
  showTree(data);
  page.drawer.update();
}

async function get(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(15000) });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.json();
}

// What the agent kept: at the start, and after a time without looks (a sleeping laptop or tab).
let filledAt = null;
async function fill(now) {
  const isGap = filledAt !== null && now - filledAt > 60;
  if (isGap) page.store = new Store();
  if (filledAt === null || isGap) {
    page.store.add(page.data);
    page.store.fill(await get("history"));
  } else page.store.add(page.data);
  filledAt = now;
}

async function look() {
  const trouble = byId("trouble");
  try {
    page.data = await get("data");
    await fill(page.data.now);
    show();
    document.body.dataset.looks = String(Number(document.body.dataset.looks ?? 0) + 1);
    trouble.hidden = true;
  } catch (error) {
    setText(trouble, `The agent does not answer: ${error.message}`);
    trouble.hidden = false;
  }
  setTimeout(look, PERIOD);
}

choice(byId("windows"), [[300, "5 min"], [900, "15 min"], [3600, "1 h"]], page.seconds, (seconds) => {
  page.seconds = seconds;
  if (page.data) show();
});
byId("node-plots").append(...plots.elements);
byId("only-warnings").addEventListener("change", () => page.data && showEvents(page.data));
byId("tree-box").addEventListener("toggle", () => page.data && showTree(page.data));

// A link of this page opens the drawer: its "close" goes back to where it was opened.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='#/']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.pushState({ opened: true }, "", link.getAttribute("href"));
  page.drawer.follow();
});
window.addEventListener("popstate", () => page.drawer.follow());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  const filter = byId("filter");
  if (event.key === "/" && !isTyping && !page.drawer.at) { event.preventDefault(); filter.focus(); filter.select(); }
  if (event.target !== filter) return;
  if (event.key === "Escape") { filter.value = ""; page.list.arrange(); filter.blur(); }
  if (event.key === "ArrowDown" || event.key === "Enter") {
    event.preventDefault();
    byId("pods").querySelector("tbody tr:not([hidden]) a")?.focus();
  }
});

// First the login in the address, if any: it is no place of the page.
await page.session.start();
look();
page.drawer.follow();
