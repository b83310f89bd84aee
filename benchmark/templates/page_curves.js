const LATENCIES = [["ttft", "TTFT"], ["tpot", "TPOT"], ["e2el", "E2EL"]];
const MARKERS = ["circle", "square", "diamond", "triangle"];
const COLOURS = 7;
const ROOM = 38;
const FRAME = { left: 58, right: 408, top: 12, bottom: 244 };

function latencyOf(cell, name) {
  const points = cell.points[name];
  if (!points) return undefined;
  return points.p50 > 0 ? points.p50 : points.mean;
}

function latenciesKnown() {
  return LATENCIES.filter(([name]) => data.cells.some((cell) => latencyOf(cell, name) > 0));
}

// What may be drawn: a value, and how far its interval goes.
function throughputOf(cell) {
  const key = data.throughput;
  const value = cell.values[key];
  if (!(value > 0)) return null;
  const width = Math.min(cell.width || 0, 0.95);
  return { value, low: value * (1 - width), high: value * (1 + width) };
}

function latencySpan(cell, name) {
  const value = latencyOf(cell, name);
  if (!(value > 0)) return null;
  return { value, low: value, high: Math.max(value, cell.points[name].p95 || value) };
}

function loadSpan(cell) {
  return cell.size > 0 ? { value: cell.size, low: cell.size, high: cell.size } : null;
}

function scaleFor(spans, from, to) {
  let low = Math.min(...spans.map((span) => span.low));
  let high = Math.max(...spans.map((span) => span.high));
  if (high / low < 1.5) [low, high] = [low / 1.3, high * 1.3];
  const bend = Math.log(high / low);
  const place = (value) => from + (Math.log(value / low) / bend) * (to - from);
  return { low, high, place };
}

// 1, 2 and 5 of every power of ten, or more where these are too few, thinned to what has room.
function ticksOf({ low, high }, most) {
  const inside = (steps) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const step of steps) found.push(step * 10 ** power);
    }
    return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  };
  const usual = inside([1, 2, 5]);
  return thinned(usual.length > 2 ? usual : inside([1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]), most);
}

function thinned(values, most) {
  const step = Math.ceil(values.length / most);
  return values.filter((_, at) => (values.length - 1 - at) % step === 0);
}

function axes(svg, x, y, { ticks, xWords, yWords, words }) {
  for (const value of ticksOf(y, 6)) {
    const at = y.place(value);
    svg.append(draw("line", { class: "axis", x1: FRAME.left, x2: FRAME.right, y1: at, y2: at }));
    svg.append(draw("text", { class: "tick", x: FRAME.left - 6, y: at + 4, "text-anchor": "end" }, yWords(value)));
  }
  let last = Infinity;
  for (const value of [...ticks].reverse()) {
    const at = x.place(value);
    if (last - at < ROOM) continue;
    last = at;
    svg.append(draw("line", { class: "axis", x1: at, x2: at, y1: FRAME.top, y2: FRAME.bottom }));
    svg.append(draw("text", { class: "tick", x: at, y: FRAME.bottom + 17, "text-anchor": "middle" }, xWords(value)));
  }
  const middle = (FRAME.left + FRAME.right) / 2;
  svg.append(draw("text", { x: middle, y: FRAME.bottom + 38, "text-anchor": "middle" }, words));
}

function mark(point, x, y, number) {
  const [across, up] = [x.place(point.x.value), y.place(point.y.value)];
  const group = draw("g", { class: `c${number % COLOURS} ${point.cell.kind.replace(" ", "-")}` });
  const bar = (x1, x2, y1, y2) => group.append(draw("line", { class: "bar", x1, x2, y1, y2 }));
  if (point.y.high > point.y.low) bar(across, across, y.place(point.y.low), y.place(point.y.high));
  if (point.x.high > point.x.low) bar(x.place(point.x.low), x.place(point.x.high), up, up);
  const dot = draw("path", { class: "dot", "data-point": point.cell.id, d: marker(MARKERS[number % 4], across, up) });
  dot.append(draw("title", {}, `${point.cell.words}: ${point.words}, ${said(point.cell)}`));
  group.append(dot);
  return group;
}

const JOINED = ["valid", "marked", "relative only"];

function curve(lines, { id, title, words, xWords, yWords, ticks, among = lines, joins = JOINED }) {
  const points = among.flatMap((line) => line.points);
  if (!points.length) return null;
  const x = scaleFor(points.map((point) => point.x), FRAME.left + 10, FRAME.right - 10);
  const y = scaleFor(points.map((point) => point.y), FRAME.bottom - 8, FRAME.top + 8);
  const holder = make("figure", null, { id });
  const svg = draw("svg", { viewBox: "0 0 420 290", role: "img", "aria-label": title });
  axes(svg, x, y, { ticks: ticks || ticksOf(x, 6), xWords, yWords, words });
  for (const line of lines) {
    const joined = line.points.filter((point) => joins.includes(point.cell.kind));
    const path = joined.map((point, n) => `${n ? "L" : "M"}${x.place(point.x.value)} ${y.place(point.y.value)}`).join("");
    const faint = joined.some((point) => point.cell.kind === "relative only") ? " relative-only" : "";
    if (joined.length > 1) svg.append(draw("path", { class: `line c${line.number % COLOURS}${faint}`, d: path }));
    for (const point of line.points) svg.append(mark(point, x, y, line.number));
  }
  holder.append(make("figcaption", title), svg);
  return holder;
}

function linesOf(cells, across, up, words) {
  return lengthsOf(cells).map(({ length }, number) => ({
    length,
    number,
    points: cells
      .filter((cell) => cell.length === length && cell.kind !== "unmeasured")
      .sort((a, b) => a.size - b.size)
      .map((cell) => ({ cell, x: across(cell), y: up(cell) }))
      .filter((point) => point.x && point.y)
      .map((point) => ({ ...point, words: words(point) })),
  }));
}

function curves(cells) {
  const shown = cells.filter(isShown);
  const unit = data.metrics.find((metric) => metric.key === data.throughput);
  const name = document.getElementById("latency").value;
  const spoken = (LATENCIES.find(([key]) => key === name) || ["", ""])[1];
  const loads = [...new Set(cells.map((cell) => cell.size))].sort((a, b) => a - b);
  const load = loadWords(cells);
  const rate = (cell) => throughputOf(cell);
  const time = (cell) => latencySpan(cell, name);
  const named = unit ? `${unit.title.toLowerCase()} (${unit.unit})` : "";
  const made = [
    unit && curve(linesOf(shown, loadSpan, rate, (p) => `${figure(p.y.value)} ${unit.unit}`), {
      id: "throughput-by-load", title: `${unit.title} (${unit.unit}) against load`, words: load, xWords: figure, yWords: figure, ticks: loads,
    }),
    name && curve(linesOf(shown, loadSpan, time, (p) => `${spoken} ${seconds(p.y.value)}`), {
      id: "latency-by-load", title: `${spoken} against load`, words: load, xWords: figure, yWords: seconds, ticks: loads,
    }),
    unit && name && curve(linesOf(shown, rate, time, (p) => `${spoken} ${seconds(p.y.value)} at ${figure(p.x.value)} ${unit.unit}`), {
      id: "latency-by-throughput", title: `${spoken} against throughput`, words: named, xWords: figure, yWords: seconds,
    }),
  ].filter(Boolean);
  document.getElementById("plots").replaceChildren(...made);
  document.getElementById("curves").hidden = !made.length;
  curveKey(linesOf(shown, loadSpan, loadSpan, () => ""));
  multiples(shown, { words: load, xWords: figure, yWords: seconds, ticks: loads });
}

function loadWords(cells) {
  if (cells.some((cell) => cell.arrivals !== "closed" && cell.arrivals !== "once")) return "requests per second, as meant";
  return cells.some((cell) => cell.arrivals === "once") ? "requests at once" : "requests in flight";
}

// One small curve for each node of a cluster, all of one scale: who differs is seen at once.
function multiples(cells, axes) {
  const holder = document.getElementById("multiples");
  if (!holder) return;
  const names = [...new Set(cells.flatMap((cell) => Object.keys(cell.nodes)))];
  const lines = names.map((name) => linesOf(cells, loadSpan, (cell) => nodeSpan(cell, name), (p) => `TTFT ${seconds(p.y.value)} from ${name}`));
  const made = names.map((name, at) => curve(lines[at], { ...axes, id: `node-${at}`, title: name, among: lines.flat(), joins: [...JOINED, "spoiled"] }));
  holder.replaceChildren(...made.filter(Boolean));
}

function nodeSpan(cell, name) {
  const [mean, half] = cell.nodes[name] || [0, 0];
  return mean > 0 ? { value: mean, low: Math.max(mean - half, mean / 20), high: mean + half } : null;
}

function curveKey(lines) {
  const entries = lines.filter((line) => line.points.length).map((line) => {
    const entry = make("li", null, { class: `c${line.number % COLOURS}` });
    const svg = draw("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" });
    svg.append(draw("path", { class: "dot", d: marker(MARKERS[line.number % 4], 6, 6) }));
    entry.append(svg, make("span", `${line.length} prompt tokens`));
    return entry;
  });
  document.getElementById("curve-key").replaceChildren(...entries);
}
