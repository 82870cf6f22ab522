"use strict";
// Colours and patterns of phases, and how lanes are coded.

const PATTERNS = {
  "training": "", "running": "", "importing and building": "steep", "starting workers": "cross",
  "waiting for nodes": "dots", "standing by": "lines", "checking": "columns", "starting ft-run": "dots",
  "no progress": "cross", "draining": "flat", "stopping": "flat", "suspended": "columns",
  "between attempts": "lines", "joining": "columns", "restoring": "dots", "first step": "flat",
  "saving": "columns",
};
const SEVERITY = ["no progress", "stopping", "draining", "suspended", "starting workers",
  "importing and building", "waiting for nodes", "checking", "starting ft-run", "standing by"];

let colours = new Map(), fills = new Map();

function colour(name) {
  if (!colours.has(name)) {
    colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  }
  return colours.get(name);
}

function colourOf(phase) {
  return colour("--p-" + phase.replace(/[^a-z]+/g, "-")) || colour("--p-other");
}

/** Return the fill of a phase: its colour with a pattern, so that it is known without colour. */
function fillOf(context, phase) {
  if (!fills.has(phase)) {
    const size = 8;
    const tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const c = tile.getContext("2d");
    c.fillStyle = colourOf(phase);
    c.fillRect(0, 0, size, size);
    c.strokeStyle = c.fillStyle = colour("--hatch");
    c.lineWidth = 1.2;
    const line = (...points) => {
      c.beginPath();
      c.moveTo(points[0], points[1]);
      c.lineTo(points[2], points[3]);
      c.stroke();
    };
    const kind = PATTERNS[phase] ?? "steep";
    if (kind === "steep" || kind === "cross") for (const x of [-8, 0, 8]) line(x, 8, x + 8, 0);
    if (kind === "cross" || kind === "lines") for (const x of [-8, 0, 8]) line(x, 0, x + 8, 8);
    if (kind === "columns") line(4, 0, 4, 8);
    if (kind === "flat") line(0, 4, 8, 4);
    if (kind === "dots") for (const [x, y] of [[2, 2], [6, 6]]) c.fillRect(x - 0.8, y - 0.8, 1.7, 1.7);
    fills.set(phase, context.createPattern(tile, "repeat"));
  }
  return fills.get(phase);
}

function sized(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}

/** Return an element that shows the fill of a phase; the page draws it again when colours change. */
function swatch(phase, width = 13, height = 13, name = "swatch") {
  const canvas = document.createElement("canvas");
  canvas.className = name;
  canvas.setAttribute("aria-hidden", "true");
  canvas.redraw = () => {
    const context = sized(canvas, width, height);
    context.fillStyle = fillOf(context, phase);
    context.fillRect(0, 0, width, height);
  };
  canvas.redraw();
  return canvas;
}

/** Decode a lane: each number is the time since the one before, times 64, plus the phase. */
function decoded(lane) {
  const starts = new Float64Array(lane.length);
  const phases = new Uint8Array(lane.length);
  let at = 0;
  for (let i = 0; i < lane.length; i++) {
    const phase = lane[i] % 64;
    at += (lane[i] - phase) / 64;
    starts[i] = at / 100;
    phases[i] = phase;
  }
  return {starts, phases};
}

/** Return the index of the last entry that is not after a time; -1: there is none. */
function indexAt(starts, time) {
  let low = 0, high = starts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
