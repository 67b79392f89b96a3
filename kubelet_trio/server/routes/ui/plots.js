// Plots: lines over the last minutes, drawn as SVG paths.

import { make, setText } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const NEWEST = 300; // seconds in which every value is kept; before them one in COARSE seconds
const COARSE = 9;
const GAP = 40; // seconds without a value that interrupt a line
export const KEPT = 3600; // seconds

// Values with their times (Unix seconds), oldest first; null is not known.
export class Series {
  constructor() {
    this.at = [];
    this.values = [];
  }

  add(time, value) {
    const { at, values } = this;
    if (at.length && time <= at[at.length - 1]) return;
    at.push(time);
    values.push(Number.isFinite(value) ? value : null);
    this.thin(time);
  }

  // Drop the value that has just become old, if its neighbour is near: there is one to drop a call.
  thin(now) {
    const { at, values } = this;
    let i = at.length - 1;
    while (i > 0 && at[i] > now - NEWEST) i -= 1;
    if (i > 1 && at[i] - at[i - 2] < COARSE) { at.splice(i - 1, 1); values.splice(i - 1, 1); }
    while (at.length && at[0] < now - KEPT) { at.shift(); values.shift(); }
  }

  // Put what the agent kept before what this page saw itself.
  fill(at, values) {
    const first = this.at.length ? this.at[0] : Infinity;
    const count = at.findIndex((time) => time >= first - 1);
    const n = count < 0 ? at.length : count;
    this.at.unshift(...at.slice(0, n));
    this.values.unshift(...values.slice(0, n));
  }

  get last() {
    return this.values[this.values.length - 1] ?? null;
  }

  most(from) {
    let most = null;
    this.at.forEach((time, i) => {
      const value = this.values[i];
      if (time >= from && value !== null && (most === null || value > most)) most = value;
    });
    return most;
  }

  // The path in a box of `width` x `height`, at most `points` of them, and its first and last x.
  path(now, seconds, top, width, height, points) {
    const from = now - seconds;
    const step = seconds / points;
    let d = "";
    let before = -Infinity;
    let first = null;
    let last = null;
    let isWhole = true;
    let slot = -1;
    let most = null;
    const flush = (time) => {
      const x = (((time - from) / seconds) * width).toFixed(1);
      const y = (height - (Math.min(most, top) / top) * height).toFixed(1);
      const jump = time - before > Math.max(GAP, 2.5 * step);
      if (first !== null && jump) isWhole = false;
      d += `${first === null || jump ? "M" : "L"}${x} ${y}`;
      if (first === null) first = x;
      last = x;
      before = time;
      most = null;
    };
    let pending = 0;
    this.at.forEach((time, i) => {
      const value = this.values[i];
      if (time < from || value === null) return;
      const place = Math.floor(time / step);
      if (most !== null && place !== slot) flush(pending);
      slot = place;
      pending = time;
      most = most === null ? value : Math.max(most, value); // peaks stay visible
    });
    if (most !== null) flush(pending);
    return { d, first, last, isWhole };
  }

  near(time) {
    let best = -1;
    this.at.forEach((at, i) => { if (best < 0 || Math.abs(at - time) < Math.abs(this.at[best] - time)) best = i; });
    return best >= 0 && Math.abs(this.at[best] - time) < GAP ? { time: this.at[best], value: this.values[best] } : null;
  }
}

function svgPath(svg, name) {
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("class", name);
  svg.append(path);
  return path;
}

function svgBox(width, height) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  return svg;
}

const WIDTH = 300;
const HEIGHT = 100;
const POINTS = 180;

export class Plot {
  // `names`: of its lines. `format`: words for a value.
  constructor(title, format, names = [""]) {
    this.title = title;
    this.format = format;
    this.names = names;
    this.value = make("span", "value", "–");
    this.svg = svgBox(WIDTH, HEIGHT);
    this.svg.setAttribute("role", "img");
    this.area = svgPath(this.svg, "area");
    this.grid = svgPath(this.svg, "grid");
    this.grid.setAttribute("d", `M0 ${HEIGHT / 2}H${WIDTH}`);
    this.marks = { requests: svgPath(this.svg, "mark request"), limits: svgPath(this.svg, "mark limit") };
    this.paths = names.map((_, i) => svgPath(this.svg, `line-${i + 1}`));
    this.cursor = svgPath(this.svg, "cursor");
    this.top = make("span", "top");
    this.start = make("span");
    this.key = make("span", "key");
    this.element = make("figure", "plot",
      make("figcaption", "", make("strong", "", title), this.value),
      make("div", "box", this.svg, this.top),
      make("div", "scale", this.start, this.key, make("span", "", "now")));
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => { this.pointed = null; this.tell(); });
  }

  // `series`: as many as names. `bounds`: { most, requests, limits }, each known or not.
  draw(series, now, seconds, bounds = {}) {
    Object.assign(this, { series, now, seconds, bounds });
    const highest = Math.max(...series.map((s) => s.most(now - seconds) ?? 0));
    let top = bounds.most ?? highest * 1.15;
    // A limit far above what is used would press the line flat: it is told in words then.
    for (const name of ["requests", "limits"]) {
      if (bounds[name] && bounds[name] <= 5 * highest) top = Math.max(top, bounds[name] * 1.08);
    }
    top = top || (this.format(1) === "1" ? 0.01 : 1024);
    series.forEach((one, i) => {
      const { d, first, last, isWhole } = one.path(now, seconds, top, WIDTH, HEIGHT, POINTS);
      this.paths[i].setAttribute("d", d);
      if (i === 0) this.area.setAttribute("d", d && isWhole && series.length === 1 ? `${d}L${last} ${HEIGHT}L${first} ${HEIGHT}Z` : "");
    });
    const words = [];
    for (const [name, path] of Object.entries(this.marks)) {
      const value = bounds[name];
      const isSeen = value && value <= top;
      const y = isSeen ? (HEIGHT - (value / top) * HEIGHT).toFixed(1) : 0;
      path.setAttribute("d", isSeen ? `M0 ${y}H${WIDTH}` : "");
      if (value) words.push(`${name === "limits" ? "limit" : "request"} ${this.format(value)}`);
    }
    setText(this.key, words.join(" · "));
    setText(this.top, this.format(top));
    setText(this.start, seconds >= 3600 ? "1 h" : `${seconds / 60} min`);
    this.tell();
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    this.pointed = this.now - this.seconds + ((event.clientX - box.left) / box.width) * this.seconds;
    this.tell();
  }

  tell() {
    if (!this.series) return;
    const { pointed } = this;
    const seen = this.series.map((s) => (pointed ? s.near(pointed) : { value: s.last }));
    const told = seen.map((one, i) => (one?.value == null ? "" : `${this.names[i]} ${this.format(one.value)}`.trim()));
    let text = told.filter(Boolean).join(" · ") || "–";
    if (pointed && seen[0]) text += ` at ${new Date(seen[0].time * 1000).toLocaleTimeString()}`;
    else if (this.bounds.most && told[0]) text += ` of ${this.bounds.told ?? this.format(this.bounds.most)}`;
    setText(this.value, text);
    const x = pointed && seen[0] ? (((seen[0].time - this.now + this.seconds) / this.seconds) * WIDTH).toFixed(1) : null;
    this.cursor.setAttribute("d", x === null ? "" : `M${x} 0V${HEIGHT}`);
    if (!pointed) this.svg.setAttribute("aria-label", `${this.title}: ${text}`);
  }
}

// A small line without words beside a number.
export class Spark {
  constructor() {
    this.svg = svgBox(80, 20);
    this.svg.setAttribute("class", "spark");
    this.svg.setAttribute("aria-hidden", "true");
    this.area = svgPath(this.svg, "area");
    this.line = svgPath(this.svg, "line-1");
  }

  draw(series, now, seconds, least) {
    const top = Math.max((series.most(now - seconds) ?? 0) * 1.15, least);
    const { d, first, last, isWhole } = series.path(now, seconds, top, 80, 19, 40);
    this.line.setAttribute("d", d);
    this.area.setAttribute("d", d && isWhole ? `${d}L${last} 20L${first} 20Z` : "");
  }
}
