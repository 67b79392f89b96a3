// What the node, its pods and their containers use: what the agent kept, and what it tells now.

import { bytes, cores, perSecond } from "./dom.js";
import { Plot, Series } from "./plots.js";

const NANO = 1e9;

export const memoryOf = (stats) => stats?.memory?.workingSetBytes ?? stats?.memory?.usageBytes ?? null;

// In cores; a pod whose cgroup does not count CPU uses what its containers do.
export function cpuOf(stats) {
  if (stats?.cpu?.usageNanoCores !== undefined) return stats.cpu.usageNanoCores / NANO;
  const told = (stats?.containers ?? []).map((c) => c.cpu?.usageNanoCores).filter((n) => n !== undefined);
  return told.length ? told.reduce((sum, n) => sum + n) / NANO : null;
}

export class Usage {
  constructor() {
    for (const name of ["cpu", "memory", "in", "out", "disk"]) this[name] = new Series();
    this.before = null;
  }

  add(now, stats, disk) {
    this.cpu.add(now, cpuOf(stats));
    const memory = memoryOf(stats) ?? (stats?.containers ?? []).map(memoryOf).reduce((a, b) => (b === null ? a : (a ?? 0) + b), null);
    this.memory.add(now, memory);
    const [rx, tx] = this.rates(stats?.network, now);
    this.in.add(now, rx);
    this.out.add(now, tx);
    this.disk.add(now, disk?.usedBytes ?? null);
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

  // `kept`: a part of /ui/history.
  fill(times, kept) {
    for (const [name, values] of Object.entries(kept)) {
      if (!(this[name] instanceof Series) || !Array.isArray(values)) continue;
      this[name].fill(times, name === "cpu" ? values.map((v) => (v === null ? null : v / NANO)) : values);
    }
  }
}

// The four plots of a thing.
export class Plots {
  constructor() {
    this.cpu = new Plot("CPU", cores);
    this.memory = new Plot("Memory", bytes);
    this.network = new Plot("Network", perSecond, ["in", "out"]);
    this.disk = new Plot("Disk", bytes);
    this.elements = [this.cpu, this.memory, this.network, this.disk].map((p) => p.element);
  }

  draw(usage, now, seconds, bounds = {}) {
    this.cpu.draw([usage.cpu], now, seconds, bounds.cpu);
    this.memory.draw([usage.memory], now, seconds, bounds.memory);
    this.network.draw([usage.in, usage.out], now, seconds);
    this.disk.draw([usage.disk], now, seconds, bounds.disk);
  }
}

// Everything that is kept on the page, by UID.
export class Store {
  constructor() {
    this.node = new Usage();
    this.pods = new Map();
    this.filled = new Set();
  }

  of(uid) {
    let usage = this.pods.get(uid);
    if (!usage) this.pods.set(uid, (usage = new Usage()));
    return usage;
  }

  add({ now, stats, pods }) {
    this.node.add(now, stats.node, stats.node.fs);
    this.stats = new Map((stats.pods ?? []).map((s) => [s.podRef.uid, s]));
    for (const pod of pods) {
      const own = this.stats.get(pod.uid);
      this.of(pod.uid).add(now, own, own?.["ephemeral-storage"]);
    }
    const seen = new Set(pods.map((p) => p.uid));
    for (const uid of this.pods.keys()) if (!seen.has(uid)) { this.pods.delete(uid); this.filled.delete(uid); }
  }

  fill(history) {
    if (history.node) this.node.fill(history.times, history.node);
    for (const kept of history.pods) if (this.pods.has(kept.uid)) this.of(kept.uid).fill(history.times, kept);
  }

  // Network and disk of a pod, which the history of all pods leaves out.
  async fillPod(uid) {
    if (this.filled.has(uid)) return;
    this.filled.add(uid);
    const answer = await fetch(`history?pod=${encodeURIComponent(uid)}`);
    if (!answer.ok) return;
    const { times, pods } = await answer.json();
    const { cpu, memory, ...rest } = pods[0] ?? {}; // CPU and memory are here already
    this.of(uid).fill(times, rest);
  }
}

// The bounds of a pod's plots, from its requests and limits.
export function boundsOf({ requests = {}, limits = {} }) {
  const cpu = (value) => (value === undefined ? undefined : value / NANO);
  return {
    cpu: { requests: cpu(requests.cpu), limits: cpu(limits.cpu) },
    memory: { requests: requests.memory, limits: limits.memory },
  };
}
