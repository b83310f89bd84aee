"use strict";
// Text only ever becomes a text node: what a model or an engine calls itself is never markup.

const data = JSON.parse(document.getElementById("data").textContent);
const cellById = new Map(data.cells.map((cell) => [cell.id, cell]));

function figure(value) {
  if (value === undefined || value === null) return "-";
  if (Math.abs(value) >= 100) return Math.round(value).toLocaleString("en-GB");
  return String(Number(value.toPrecision(3)));
}

function seconds(value) {
  if (value === undefined || value === null) return "-";
  return Math.abs(value) < 1 ? `${figure(value * 1000)} ms` : `${figure(value)} s`;
}

function make(name, text, attributes = {}) {
  const element = document.createElement(name);
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function draw(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function said(cell) {
  const codes = cell.verdicts.map((verdict) => verdict.code).join(", ");
  if (cell.kind === "unmeasured") return cell.reason ? `${cell.state}: ${cell.reason}` : cell.state;
  return cell.kind === "valid" ? "valid" : `${cell.kind} ${codes}`;
}
