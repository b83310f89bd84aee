const hidden = new Set();
const metricChooser = document.getElementById("metric");
const arrivalsChooser = document.getElementById("arrivals");
let chosen = null;

// A spoiled cell is shown when every code that spoils it may be seen.
function labelsOf(cell) {
  if (cell.kind !== "spoiled") return [cell.kind];
  return cell.verdicts.filter((verdict) => verdict.spoils).map((verdict) => verdict.code);
}

function isShown(cell) {
  return !labelsOf(cell).some((label) => hidden.has(label));
}

function filterBoxes() {
  const counts = new Map();
  for (const label of data.cells.flatMap(labelsOf)) counts.set(label, (counts.get(label) || 0) + 1);
  const plain = ["valid", "marked", "relative only", "unmeasured"].filter((label) => counts.has(label));
  const codes = [...counts.keys()].filter((label) => !plain.includes(label)).sort();
  for (const label of [...plain, ...codes]) {
    const box = make("input", null, { type: "checkbox", value: label });
    box.checked = true;
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(label);
      else hidden.add(label);
      refresh();
    });
    const words = label === "unmeasured" ? "not measured" : label;
    const holder = make("label");
    holder.append(box, ` ${words} (${counts.get(label)})`);
    document.getElementById("filter").append(holder);
  }
}

function options(select, entries) {
  for (const [value, words] of entries) select.append(make("option", words, { value }));
  select.addEventListener("change", refresh);
}

function refresh() {
  const metric = data.metrics.find((each) => each.key === metricChooser.value);
  const cells = data.cells.filter((cell) => cell.arrivals === arrivalsChooser.value);
  if (metric) heatmap(cells, metric);
  curves(cells);
  filterRows(document.getElementById("cells"));
  const shown = data.cells.filter(isShown).length;
  document.getElementById("shown").textContent = `${shown} of ${data.cells.length} cells`;
  const inMap = [...document.querySelectorAll("#heatmap td[data-cell]")];
  choose(inMap.find((td) => td.dataset.cell === chosen) || inMap[0]);
}

function choose(td) {
  if (!td) return;
  document.querySelectorAll("#heatmap .chosen").forEach((other) => {
    other.classList.remove("chosen");
    other.tabIndex = -1;
  });
  td.classList.add("chosen");
  td.tabIndex = 0;
  chosen = td.dataset.cell;
  detail(cellById.get(chosen));
}

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function move(event) {
  const td = event.target.closest("td[data-cell]");
  const step = MOVES[event.key];
  if (!td || !step) return;
  event.preventDefault();
  const { rows } = document.getElementById("heatmap");
  let [row, column] = [td.parentNode.rowIndex + step[0], td.cellIndex + step[1]];
  while (rows[row]?.cells[column]) {
    if (rows[row].cells[column].dataset.cell) {
      rows[row].cells[column].focus();
      return;
    }
    [row, column] = [row + step[0], column + step[1]];
  }
}

function begin() {
  if (!data.metrics.length) return;
  document.getElementById("explore").hidden = false;
  options(metricChooser, data.metrics.map((metric) => [metric.key, `${metric.title} (${metric.unit})`]));
  const arrivals = [...new Set(data.cells.map((cell) => cell.arrivals))];
  options(arrivalsChooser, arrivals.map((each) => [each, each]));
  document.getElementById("arrivals-label").hidden = arrivals.length < 2;
  options(document.getElementById("latency"), latenciesKnown());
  document.getElementById("latency-label").hidden = latenciesKnown().length < 2;
  filterBoxes();
  const map = document.getElementById("heatmap");
  for (const kind of ["mouseover", "focusin"]) {
    map.addEventListener(kind, (event) => choose(event.target.closest("td[data-cell]")));
  }
  map.addEventListener("keydown", move);
  refresh();
}

for (const td of document.querySelectorAll("#nodemap td[data-share]")) {
  const rgb = colour(Number(td.dataset.share));
  td.style.backgroundColor = `rgb(${rgb.join(",")})`;
  td.style.color = inkOn(rgb);
}
sortable(document.getElementById("cells"));
begin();
