// The drawer: one pod, in tabs. Its address is the URL's hash, so that links and "back" work:
// #/pod/NAMESPACE/NAME[/TAB[/CONTAINER]]

import { button, byId, make, setText, since } from "./dom.js";
import { details, events, yaml } from "./details.js";
import { logs } from "./logs.js";
import { podState, readyOf } from "./list.js";
import { terminal } from "./terminal.js";

const TABS = { details: ["Details", details], logs: ["Logs", logs], events: ["Events", events], yaml: ["YAML", yaml], terminal: ["Terminal", terminal] };

export function readHash() {
  const [, kind, namespace, name, tab = "details", container = ""] = location.hash.slice(1).split("/").map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  return kind === "pod" && name ? { namespace, name, tab, container } : null;
}

export function hashOf({ namespace, name }, tab = "details", container = "") {
  const parts = ["pod", namespace, name, ...(tab === "details" ? [] : [tab, ...(container ? [container] : [])])];
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export class Drawer {
  constructor(page) {
    this.page = page; // data, store, list, seconds
    this.dialog = byId("drawer");
    this.panel = byId("panel");
    this.view = null;
    this.at = null;
    this.tabs = {};
    byId("drawer-close").addEventListener("click", () => this.leave());
    this.dialog.addEventListener("cancel", (event) => { event.preventDefault(); this.leave(); });
    this.dialog.addEventListener("click", (event) => { if (event.target === this.dialog) this.leave(); });
    byId("tabs").addEventListener("keydown", (event) => this.moveTab(event));
    window.addEventListener("hashchange", () => this.follow());
  }

  get names() {
    return Object.keys(TABS).filter((name) => name !== "terminal" || this.page.session.isIn);
  }

  showTabs() {
    if (Object.keys(this.tabs).join() === this.names.join()) return;
    this.tabs = {};
    byId("tabs").replaceChildren(...this.names.map((name) => {
      const tab = button(TABS[name][0], () => this.go(name));
      tab.id = `tab-${name}`;
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", "panel");
      this.tabs[name] = tab;
      return tab;
    }));
  }

  // A tab replaces the address: "back" closes the drawer.
  go(tab, container = "") {
    history.replaceState(null, "", hashOf(this.at, tab, container));
    this.follow();
  }

  leave() {
    // Opened by a link of this page: "back" is where it was opened.
    if (history.state?.opened) history.back();
    else { history.pushState(null, "", "#"); this.follow(); }
  }

  follow() {
    const to = readHash();
    if (!to) { this.close(); return; }
    if (!this.names.includes(to.tab)) to.tab = "details";
    const isOther = !this.at || this.at.namespace !== to.namespace || this.at.name !== to.name;
    if (!isOther && this.at.tab === to.tab && this.at.container === to.container) return;
    this.at = to;
    this.showTabs();
    if (isOther) this.opened = false;
    this.show();
  }

  // Someone was signed in or out: other tabs and buttons.
  refresh() {
    if (!this.at) return;
    if (!this.names.includes(this.at.tab)) this.at.tab = "details";
    this.showTabs();
    this.show();
  }

  show() {
    const { at } = this;
    this.view?.close?.();
    for (const [name, tab] of Object.entries(this.tabs)) {
      tab.setAttribute("aria-selected", String(name === at.tab));
      tab.tabIndex = name === at.tab ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `tab-${at.tab}`);
    this.panel.className = `panel-${at.tab}`;
    this.panel.replaceChildren();
    this.view = TABS[at.tab][1](this.panel, this);
    this.panel.scrollTop = 0;
    setText(byId("drawer-title"), `${at.namespace}/${at.name}`);
    if (!this.dialog.open) { this.dialog.showModal(); byId("drawer-title").focus(); }
    this.update();
  }

  close() {
    if (!this.at) return;
    this.view?.close?.();
    this.view = null;
    const name = `${this.at.namespace}/${this.at.name}`;
    this.at = null;
    this.panel.replaceChildren();
    this.dialog.close();
    this.page.list.focus(name);
  }

  get pod() {
    const { data } = this.page;
    return this.at && data?.pods.find((p) => p.namespace === this.at.namespace && p.name === this.at.name);
  }

  // After each look.
  update() {
    if (!this.at || !this.page.data) return;
    const { pod, page: { data: { now } } } = this;
    const trouble = byId("drawer-trouble");
    trouble.hidden = Boolean(pod);
    if (!pod) {
      setText(trouble, "This pod is not on the node, or not any more.");
      setText(byId("drawer-facts"), "");
      return;
    }
    const [word, level] = podState(pod);
    const [ready, main] = readyOf(pod);
    const facts = [`${ready}/${main} ready`];
    if (pod.ip) facts.push(pod.ip);
    if (pod.createdAt) facts.push(`${since(now, pod.createdAt)} old`);
    byId("drawer-facts").replaceChildren(make("span", `state ${level}`, word), ` ${facts.join(" · ")}`);
    this.view?.update?.(pod, now);
  }

  moveTab(event) {
    const names = Object.keys(this.tabs);
    const at = names.indexOf(this.at.tab);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const name = names[(to + names.length) % names.length];
    this.go(name);
    this.tabs[name].focus();
  }
}
