function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = make("button", head.textContent, { type: "button" });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      sort(table.tBodies[0], column, rising ? 1 : -1);
    });
  });
}

// What has no figure stands last, whichever way the others go.
function sort(body, column, sign) {
  const numeric = [...body.rows].some((row) => row.cells[column].dataset.value !== undefined);
  const keyed = [...body.rows].map((row) => {
    const { dataset, textContent } = row.cells[column];
    if (!numeric) return [textContent, row];
    return [dataset.value === undefined ? null : Number(dataset.value), row];
  });
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (numeric ? a - b : a.localeCompare(b, "en", { numeric: true }));
  });
  body.append(...keyed.map(([, row]) => row));
}

function filterRows(table) {
  for (const row of table.tBodies[0].rows) {
    const cell = cellById.get(row.dataset.cell);
    if (cell) row.hidden = !isShown(cell);
  }
}
