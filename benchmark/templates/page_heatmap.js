// Cividis: even steps of lightness, the same to colour-blind eyes.
const RAMP = ["#00224e", "#1a386f", "#434e6c", "#61656f", "#7d7c78", "#9b9476", "#bcae6c", "#dec958", "#fee838"]
  .map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));

function colour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  return RAMP[low].map((part, n) => Math.round(part + (RAMP[low + 1][n] - part) * (at - low)));
}

function inkOn([red, green, blue]) {
  const linear = [red, green, blue].map((part) => ((part / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return luminance > 0.179 ? "#000000" : "#ffffff";
}

// Where figures span more than a factor of 20, colours follow their logarithm.
function scaleOf(values) {
  const least = Math.min(...values);
  const most = Math.max(...values);
  const bend = least > 0 && most / least > 20 ? Math.log : (value) => value;
  const span = bend(most) - bend(least);
  return { least, most, share: (value) => (span ? (bend(value) - bend(least)) / span : 0.5) };
}

function heatCell(cell, metric, scale) {
  const value = cell.values[metric.key];
  const known = value !== undefined && cell.kind !== "unmeasured";
  const words = known ? `${metric.title} ${figure(value)} ${metric.unit}` : "no figure";
  const td = make("td", null, {
    role: "gridcell", class: cell.kind.replace(" ", "-"), tabindex: "-1", "data-cell": cell.id,
    "aria-label": `${cell.words}: ${words}, ${said(cell)}`,
  });
  td.append(make("span", known ? figure(value) : cell.kind === "unmeasured" ? cell.state : "-"));
  if (known) {
    const rgb = colour(scale.share(value));
    td.style.backgroundColor = `rgb(${rgb.join(",")})`;
    td.style.color = inkOn(rgb);
  }
  return td;
}

// One cell of each row of the grid: its label is `length`.
function lengthsOf(cells) {
  const first = [...new Map(cells.map((cell) => [cell.length, cell])).values()];
  return first.sort((a, b) => a.context - b.context || a.answer - b.answer);
}

function heatmap(cells, metric) {
  const shown = cells.filter((cell) => isShown(cell));
  const values = shown.map((cell) => cell.values[metric.key]).filter((value) => value !== undefined);
  const scale = scaleOf(values.length ? values : [0]);
  const loads = [...new Map(cells.map((cell) => [cell.load, cell])).values()].sort((a, b) => a.size - b.size);
  const table = document.getElementById("heatmap");
  const caption = make("caption", `${metric.title} (${metric.unit}): prompt tokens down, load across`, { id: "map-title" });
  const head = make("tr");
  head.append(make("th", ""));
  for (const load of loads) head.append(make("th", load.load, { scope: "col" }));
  const rows = lengthsOf(cells).map(({ length }) => heatRow(length, loads, shown, (cell) => heatCell(cell, metric, scale)));
  table.replaceChildren(caption, head, ...rows);
  legend(metric, scale, values.length);
}

function heatRow(length, loads, shown, td) {
  const row = make("tr");
  row.append(make("th", length, { scope: "row" }));
  for (const { load } of loads) {
    const cell = shown.find((each) => each.length === length && each.load === load);
    row.append(cell ? td(cell) : make("td", "", { class: "none", role: "gridcell" }));
  }
  return row;
}

function legend(metric, scale, count) {
  const stops = RAMP.map((rgb) => `rgb(${rgb.join(",")})`).join(",");
  document.getElementById("ramp").style.background = `linear-gradient(to right, ${stops})`;
  document.getElementById("least").textContent = count ? figure(scale.least) : "";
  document.getElementById("most").textContent = count ? `${figure(scale.most)} ${metric.unit}` : "";
  document.getElementById("better").textContent = `${metric.better} is better`;
}
