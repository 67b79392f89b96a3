// Who may act on this page: a session, from the address that `kubelet-trio ui` prints.
//
// Its cookie cannot be read here, and alone opens nothing. Its key is kept for this tab, which no
// other origin can read, and is sent along with each action.

import { byId, copyButton, button, make, ownCommand, say } from "./dom.js";

const KEY = "kubelet-trio-key";
const PERIOD = 60000; // ms between two questions whether the session goes on

export class Session {
  constructor(changed) {
    this.changed = changed; // called when someone was signed in or out
    this.name = "";
    this.problem = "";
  }

  get key() {
    return sessionStorage.getItem(KEY) ?? "";
  }

  get isIn() {
    return this.name !== "";
  }

  // With the login in the address, if there is one. It is removed from the address at once.
  async start() {
    if (!(await this.enter()) && this.key) await this.ask();
    window.addEventListener("hashchange", () => this.enter());
    setInterval(() => { if (this.isIn) this.ask(); }, PERIOD);
  }

  async enter() {
    const token = /^#\/login\/([\w-]+)$/.exec(location.hash)?.[1];
    if (!token) return false;
    history.replaceState(null, "", location.pathname);
    await this.logIn(token);
    return true;
  }

  async logIn(token) {
    try {
      const answer = await fetch("login", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });
      if (!answer.ok) throw new Error(await answer.text());
      const told = await answer.json();
      sessionStorage.setItem(KEY, told.key);
      this.set(told.session);
    } catch (error) {
      this.set("", `Not signed in: ${error.message}`);
    }
  }

  // Whether the session goes on.
  async ask() {
    try {
      const answer = await fetch("session", { headers: { "X-Kubelet-Trio-Key": this.key } });
      const { session } = answer.ok ? await answer.json() : { session: "" };
      if (!session) sessionStorage.removeItem(KEY);
      this.set(session, session ? "" : "The session has ended.");
    } catch { /* The page says itself that the agent does not answer. */ }
  }

  async signOut() {
    try {
      await this.post("logout");
    } catch { /* It is over for this page, too, if the agent does not know it any more. */ }
    sessionStorage.removeItem(KEY);
    this.set("", "Signed out.");
  }

  // Returns the answer's JSON; raises an Error with the agent's words.
  async post(path) {
    const answer = await fetch(path, { method: "POST", headers: { "X-Kubelet-Trio-Key": this.key }, signal: AbortSignal.timeout(15000) });
    if (!answer.ok) {
      const words = (await answer.text()).trim();
      if (answer.status === 403) await this.ask();
      throw new Error(words);
    }
    return answer.json();
  }

  socket(path) {
    const url = new URL(path, location.href);
    url.protocol = "ws:"; // the page is served on loopback, without TLS
    url.hash = "";
    return new WebSocket(url, ["v5.channel.k8s.io", `key.kubelet-trio.${this.key}`]);
  }

  set(name, problem = "") {
    const isOther = this.name !== name || this.problem !== problem;
    this.name = name;
    this.problem = problem;
    if (!isOther) return;
    if (problem) say(problem);
    this.changed();
  }

  // The line above the page. `actions`: the agent was started with --ui-actions.
  show({ actions, node }) {
    const box = byId("session");
    const state = `${actions} ${this.name} ${this.problem}`;
    if (box.dataset.state === state) return;
    box.dataset.state = state;
    box.hidden = !actions;
    if (this.isIn) {
      const out = button("Sign out", () => this.signOut());
      out.id = "sign-out";
      out.classList.add("small");
      box.replaceChildren(make("span", "chip good", `Signed in as owner, session ${this.name}`), out);
    } else {
      const command = ownCommand(node, "ui");
      box.replaceChildren(...(this.problem ? [make("span", "bad", this.problem)] : []),
        make("span", "quiet", "Read-only. To act here, run ", make("code", "", command), " and open what it prints."), copyButton(command, "the command"));
    }
  }
}

// Asks in a dialog; resolves to whether the answer was yes.
export function confirm(question, explanation, yes) {
  return new Promise((resolve) => {
    const dialog = make("dialog", "confirm");
    const title = make("h2", "", question);
    title.id = "confirm-title";
    dialog.setAttribute("aria-labelledby", title.id);
    const finish = (answer) => { dialog.close(); dialog.remove(); resolve(answer); };
    const go = button(yes, () => finish(true));
    go.id = "confirm-yes";
    go.classList.add("strong");
    const cancel = button("Cancel", () => finish(false));
    cancel.autofocus = true;
    dialog.append(title, make("p", "quiet", explanation), make("div", "tools", cancel, go));
    dialog.addEventListener("cancel", (event) => { event.preventDefault(); finish(false); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
