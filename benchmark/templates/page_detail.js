const POINTS = ["mean", "p50", "p90", "p95", "p99", "max"];
const PLOTTED = ["p50", "p90", "p95", "p99", "max"];
const NAMES = ["ttft", "tpot", "itl", "e2el"];
const SHAPES = { ttft: "circle", tpot: "square", itl: "diamond", e2el: "triangle" };

function detail(cell) {
  const panel = document.getElementById("detail");
  panel.dataset.cell = cell.id;
  panel.replaceChildren(make("h3", cell.words), verdictList(cell));
  const names = NAMES.filter((name) => cell.points[name]);
  if (names.length) {
    const holder = make("div", null, { class: "scroll" });
    holder.append(percentiles(cell, names));
    panel.append(holder);
    const drawn = names.filter((name) => PLOTTED.filter((point) => cell.points[name][point] > 0).length > 1);
    if (drawn.length) panel.append(plot(cell, drawn));
  }
  const more = make("dl");
  for (const [name, words] of cell.more) more.append(make("dt", name), make("dd", words));
  panel.append(more);
}

function verdictList(cell) {
  if (!cell.verdicts.length) return make("p", said(cell));
  const list = make("ul");
  for (const verdict of cell.verdicts) {
    list.append(make("li", `${verdict.code}: ${verdict.because}`, { class: verdict.spoils ? "against" : "about" }));
  }
  return list;
}

function percentiles(cell, names) {
  const table = make("table", null, { class: "plain", id: "percentiles" });
  const head = make("tr");
  head.append(make("th", ""), ...POINTS.map((point) => make("th", point, { scope: "col", class: "number" })));
  table.append(head);
  for (const name of names) {
    const row = make("tr");
    row.append(make("th", name.toUpperCase(), { scope: "row", class: name }));
    for (const point of POINTS) row.append(make("td", seconds(cell.points[name][point]), { class: "number" }));
    table.append(row, ...bounds(cell, name));
  }
  return table;
}

// How far the client may have moved each figure stands below it.
function bounds(cell, name) {
  const known = POINTS.map((point) => cell.bounds[`${name}_${point}`]);
  if (!known.some((value) => value >= 1e-5)) return [];
  const row = make("tr", null, { class: "bound" });
  row.append(make("th", "± client", { scope: "row" }));
  for (const value of known) row.append(make("td", value === undefined ? "" : seconds(value), { class: "number" }));
  return [row];
}

function plot(cell, names) {
  const series = names.map((name) => [name, PLOTTED.map((point) => cell.points[name][point])]);
  const values = series.flatMap(([, points]) => points).filter((value) => value > 0);
  const svg = draw("svg", { viewBox: "0 0 440 230", role: "img", "aria-label": `Percentiles of ${cell.words}, on a logarithmic scale` });
  const low = Math.floor(Math.log10(Math.min(...values)));
  const high = Math.max(Math.ceil(Math.log10(Math.max(...values))), low + 1);
  const y = (value) => 200 - ((Math.log10(value) - low) / (high - low)) * 185;
  const x = (at) => 60 + at * 80;
  for (let power = low; power <= high; power += 1) {
    svg.append(draw("line", { class: "axis", x1: 52, x2: 390, y1: y(10 ** power), y2: y(10 ** power) }));
    svg.append(draw("text", { x: 47, y: y(10 ** power) + 4, "text-anchor": "end" }, seconds(10 ** power)));
  }
  PLOTTED.forEach((point, at) => svg.append(draw("text", { x: x(at), y: 220, "text-anchor": "middle" }, point)));
  const named = labelHeights(series.map(([name, points]) => [name, y(points.at(-1) || 10 ** low)]));
  for (const [name, points] of series) svg.append(line(name, points, { x, y, label: named.get(name) }));
  return svg;
}

// Labels stand beside their lines' ends, 12 apart where the ends are closer.
function labelHeights(ends) {
  let last = -Infinity;
  return new Map([...ends].sort((a, b) => a[1] - b[1]).map(([name, height]) => {
    last = Math.max(height, last + 12);
    return [name, last];
  }));
}

function line(name, points, { x, y, label }) {
  const group = draw("g", { class: name });
  const known = points.map((value, at) => [at, value]).filter(([, value]) => value > 0);
  const path = known.map(([at, value], n) => `${n ? "L" : "M"}${x(at)} ${y(value)}`).join("");
  group.append(draw("path", { class: "line", d: path }));
  for (const [at, value] of known) {
    const dot = draw("path", { class: "dot", d: shape(name, x(at), y(value)) });
    dot.append(draw("title", {}, `${name.toUpperCase()} ${PLOTTED[at]} ${seconds(value)}`));
    group.append(dot);
  }
  group.append(draw("text", { class: "name", x: x(4) + 9, y: label + 4 }, name.toUpperCase()));
  return group;
}

function shape(name, x, y) {
  return marker(SHAPES[name], x, y);
}

function marker(kind, x, y) {
  const round = `M${x - 3.5} ${y}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z`;
  return {
    circle: round,
    square: `M${x - 3} ${y - 3}h6v6h-6z`,
    diamond: `M${x} ${y - 4.5}l4.5 4.5l-4.5 4.5l-4.5 -4.5z`,
    triangle: `M${x} ${y - 4.5}l4.5 8h-9z`,
  }[kind];
}
