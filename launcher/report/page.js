// Builds the page from the data. All text is set by `textContent`: events are untrusted.

const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");

/** Make an element: h("p.quiet", {title: "…"}, "text", child, …); false and null are left out. */
function h(what, ...children) {
  const [tag, ...names] = what.split(".");
  const element = document.createElement(tag);
  if (names.length) element.className = names.join(" ");
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false || child === "") continue;
    if (child instanceof Node) element.append(child);
    else if (typeof child === "object") for (const [key, value] of Object.entries(child)) element.setAttribute(key, value);
    else element.append(String(child));
  }
  return element;
}

// --- numbers and times --------------------------------------------------------------------------

const two = (number) => String(number).padStart(2, "0");
const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");

function day(seconds) {
  const at = new Date(seconds * 1000);
  return `${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]}`;
}

function clock(seconds, digits = 0) {
  const at = new Date(seconds * 1000);
  const rest = digits ? "." + String(at.getUTCMilliseconds()).padStart(3, "0").slice(0, digits) : "";
  return `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}:${two(at.getUTCSeconds())}${rest}`;
}

function moment(seconds) {
  if (seconds === null) return "?";
  return h("time", {datetime: new Date(seconds * 1000).toISOString()}, `${day(seconds)} ${clock(seconds)}`);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds > 0 && seconds < 0.00995) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60);
  return hours ? `${hours}:${two(minutes % 60)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

function rate(number) {
  return number >= 100 ? number.toFixed(0) : String(Number(number.toPrecision(3)));
}

function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) { bytes /= 1000; unit++; }
  return `${unit ? bytes.toFixed(1) : bytes} ${units[unit]}`;
}

const percent = (share) => `${(share * 100).toFixed(1)} %`;
const count = (number) => number.toLocaleString("en").replace(/,/g, "\u202f");
const several = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
const kind = (name) => name.replace(/_/g, " ");

// --- parts --------------------------------------------------------------------------------------

function section(title, ...content) {
  const id = title.toLowerCase().replace(/[^a-z]+/g, "-");
  return h("section", {"aria-labelledby": id}, h("h2", {id}, title), ...content);
}

/** A table; the columns are [title, "number" | "wide" | ""]. The first cell of a row is its head. */
function table(columns, rows, last = null, limit = Infinity) {
  const row = (cells, name) => h("tr" + (name ? "." + name : ""), cells.map((cell, i) => {
    const tag = i ? "td" : "th", type = columns[i][1];
    return h(tag + (type ? "." + type : ""), ...(i ? [] : [{scope: "row"}]), cell);
  }));
  const head = h("tr", columns.map(([title, type]) => h("th" + (type ? "." + type : ""), {scope: "col"}, title)));
  const body = h("tbody", rows.slice(0, limit).map((cells) => row(cells, "")), last && row(last, "total"));
  const panel = h("div.panel.scroll", h("table", h("thead", head), body));
  if (rows.length <= limit) return panel;
  const more = h("button.more", {type: "button"}, `Show all ${count(rows.length)}`);
  more.addEventListener("click", () => {
    body.append(...rows.slice(limit).map((cells) => row(cells, "")));
    more.remove();
  });
  return h("div", panel, more);
}

function title() {
  const {summary} = data, ended = summary.exit_code;
  const [name, text] = ended === null ? ["warn", "no end in the events"]
    : ended === 0 ? ["good", "succeeded"] : ["bad", `failed, exit code ${ended}`];
  document.title = `${summary.job} · ft-run report`;
  const attempts = several(Math.max(1, data.attempts.length), "attempt");
  const lasted = duration((summary.at_s || 0) - (summary.started_at_s || 0));
  return h("header", h("div.kicker", "Job"), h("h1", summary.job),
    h("p.period", h(`span.state.${name}`, text), moment(summary.started_at_s), " to ", moment(summary.at_s),
      ` UTC · ${lasted} · ${attempts} · ${several(data.nodes.length, "node")}`),
    ended ? h("p.verdict", summary.ended) : null);
}

function tile(name, figure, ...more) {
  return h("div.tile", h("dt", name), h("dd", h("div.figure", figure), more.filter(Boolean).map((one) => h("div.more", one))));
}

function tiles() {
  const {training, saves, restarts, nodes, at_s} = data.summary, {time} = data;
  const ago = (at) => `${duration(Math.max(0, at_s - at))} before the last event`;
  const lost = Object.values(time.lost).reduce((sum, one) => sum + one, 0);
  const last = data.attempts.length > 1 ? data.attempts[data.attempts.length - 1].time.goodput : null;
  const state = data.summary.exit_code !== null ? "the job has ended"
    : training.is_training ? "training" : `not training: ${training.phase}`;
  const saved = saves.checkpoint;
  const kinds = Object.entries(restarts.by_kind).map(([name, number]) => `${kind(name)}: ${number}`);
  const gone = ["missing", "lost", "excluded"].filter((word) => nodes[word].length)
    .map((word) => `${word}: ${nodes[word].slice(0, 6).join(", ")}${nodes[word].length > 6 ? " …" : ""}`);
  return h("dl.tiles",
    tile(data.attempts.length > 1 ? "Goodput, all attempts" : "Goodput",
      time.goodput === null ? "not known" : percent(time.goodput),
      data.attempts.length > 1 && "effective training time ratio",
      time.goodput === null ? "steps are not watched" : `${duration(lost)} of training lost`,
      last !== null && `last attempt ${percent(last)}`),
    tile("Last step", training.step < 0 ? "not known" : count(training.step), state,
      training.step_at_s !== null && ago(training.step_at_s)),
    tile("Last checkpoint", saved ? `step ${count(saved.step)}` : "none", saved && ago(saved.at_s),
      saved && `${size(saved.bytes)} in ${duration(saved.seconds)}`,
      saves.failed ? `${saves.failed} not written since` : "",
      saves.snapshot_step >= 0 && `snapshot of step ${count(saves.snapshot_step)}`),
    tile("Restarts", count(restarts.count), kinds.join(", "),
      restarts.limit !== null && `${restarts.used} of ${restarts.limit} used`),
    tile("Nodes", count(nodes.in_round), "in the last round",
      nodes.spares !== null && several(nodes.spares, "spare"), ...gone),
    tile("Speed", training.steps_per_s === null ? "not known" : `${rate(training.steps_per_s)} /s`,
      training.steps_per_s !== null && "steps, in the last minute",
      training.best_hour_steps_per_s !== null && `best hour ${rate(training.best_hour_steps_per_s)} /s`,
      training.slowdown !== null && `a step takes ${training.slowdown.toFixed(2)} times as long`,
      training.data_wait !== null && `${percent(training.data_wait)} waiting for data`));
}

function whereTimeWent() {
  const {time} = data;
  const phases = Object.entries(time.phases).sort((a, b) => b[1] - a[1]);
  const bar = h("canvas.bar", {role: "img", "aria-label": "Shares of the phases; the table below has the numbers."});
  bar.redraw = () => {
    const width = bar.clientWidth, height = bar.clientHeight, c = sized(bar, width, height);
    let x = 0;
    for (const [name, seconds] of phases) {
      const part = seconds / time.seconds * width;
      c.fillStyle = fillOf(c, name);
      c.fillRect(x, 0, Math.max(0, part - 1), height);
      c.font = "600 12.5px system-ui, sans-serif";
      const text = `${name} ${percent(seconds / time.seconds)}`, room = c.measureText(text).width + 20;
      if (part > room) {
        c.fillStyle = colour("--panel");
        c.fillRect(x + 6, 6, room - 6, height - 12);
        c.fillStyle = colour("--ink");
        c.textBaseline = "middle";
        c.fillText(text, x + 13, height / 2 + 0.5);
      }
      x += part;
    }
  };
  const rows = phases.map(([name, seconds]) => {
    const share = swatch(name, 300, 8, "share");
    share.style.width = `${seconds / time.seconds * 100}%`;
    return [h("span", swatch(name), name), duration(seconds), percent(seconds / time.seconds), share];
  });
  const columns = [["Phase", ""], ["Time", "number"], ["Share", "number"], ["", "sharecell"]];
  const also = [["data wait", time.data_wait_s], ["slow steps", time.slow_steps_s]].filter(([, seconds]) => seconds);
  const lost = Object.entries(time.lost).map(([name, seconds]) => [kind(name), duration(seconds)]);
  const attempts = data.attempts.map((one) => [
    moment(one.began_s), duration(one.time.seconds),
    one.time.goodput === null ? "–" : percent(one.time.goodput), one.nodes,
    one.exit_code === null ? "–" : one.exit_code,
  ]);
  return section("Where the time went", bar, h("div.split",
    table(columns, rows, ["total", duration(time.seconds), "100.0 %", ""]),
    h("div",
      lost.length > 0 && table([["Training lost by", ""], ["Time", "number"]], lost), lost.length > 0 && h("p", "\u00a0"),
      also.length > 0 && table([["Of the training time", ""], ["Time", "number"]], also.map(([name, seconds]) => [name, duration(seconds)])),
      also.length > 0 && h("p", "\u00a0"),
      data.attempts.length > 1 && table(
        [["Attempt", ""], ["Time", "number"], ["Goodput", "number"], ["Nodes", "number"], ["Exit", "number"]], attempts),
      data.attempts.length < 2 && lost.length === 0 && h("p.quiet", time.goodput === null
        ? "Whether workers trained is not known: steps are watched with --watch-workers or --hang-timeout."
        : "No training was lost."))));
}

function advice() {
  const {measured, advice} = data.summary;
  if (!measured) return null;
  const idle = measured.idle_of_s ? `, ${rate(measured.idle_cpu_s / measured.idle_of_s)} of ${rate(measured.cpus)} CPUs idle` : "";
  return section("Advice", advice.length ? h("ul", advice.map((one) => h("li", one.text))) : h("p.quiet", "None."),
    h("p.quiet", `Measured in ${duration(measured.training_s)} of training with num_workers ${measured.num_workers}: ` +
    `data wait ${duration(measured.wait_s)}${idle}. Nothing was changed.`));
}

function marks() {
  const {began_s} = data, found = [];
  for (const one of data.restarts) {
    found.push({at: one.at_s - began_s, kind: "restart", text: `restart, round ${one.round}: ${one.cause}`});
  }
  for (const one of data.failures) {
    if (one.is_root) found.push({at: one.at_s - began_s, kind: "failure", node: one.node, text: one.summary});
  }
  for (const one of data.checkpoints) {
    const text = one.reason ? `checkpoint of step ${one.step} not written: ${one.reason}` : `checkpoint of step ${one.step}`;
    found.push({at: one.at_s - began_s, kind: "checkpoint", text, isLost: Boolean(one.reason)});
  }
  return found.sort((a, b) => a.at - b.at);
}

function timeline() {
  const {began_s} = data;
  const used = new Set(data.nodes.flatMap((node) => Object.keys(node.phases)).concat(Object.keys(data.time.phases)));
  const shown = new LiveTimeline(data, marks(), {
    clock: (at) => `${day(began_s + at)} ${clock(began_s + at, shown.to - shown.from < 120 ? 2 : 0)}`,
    duration,
    number: rate,
    tick: (at, step) => step >= 86400 ? day(began_s + at)
      : step >= 60 ? clock(began_s + at).slice(0, 5) : clock(began_s + at, step < 1 ? 2 : 0),
  });
  const legend = h("div.legend",
    data.phases.filter((phase) => used.has(phase)).map((phase) => h("span", swatch(phase), phase)),
    h("span", h("b.bad", "✕ "), "failure"), h("span", "▼ restart"), h("span", h("b", "◆ "), "checkpoint"));
  window.timeline = shown;
  return section("Timeline", shown.root, legend);
}

function restarts() {
  if (!data.restarts.length) return null;
  const columns = [["Time (UTC)", ""], ["Round", "number"], ["Kind", ""], ["Down", "number"], ["Parts", ""],
    ["Done again", "number"], ["Steps", "number"], ["Cause", "wide"]];
  const part = (name, seconds) => h("div", h("span.quiet", `${name} `), duration(seconds));
  const rows = data.restarts.map((one) => [
    moment(one.at_s), one.round, kind(one.kind) + (one.is_free ? " (not counted)" : ""), duration(one.down_s),
    h("span", one.detect_s !== null && part("detecting", one.detect_s),
      Object.entries(one.phases).map(([name, seconds]) => part(name, seconds))),
    duration(one.redo_s), one.redo_steps === null ? "–" : count(one.redo_steps), one.cause + (one.rule ? ` (${one.rule})` : ""),
  ]);
  return section("Restarts", table(columns, rows, null, 50), h("p.quiet",
    "Down: from the failure to the next step, the sum of the parts. Detecting: until training ended; the other parts are those " +
    "of \u201cWhere the time went\u201d. Done again: training and steps after the one that the job resumed from."));
}

function failures() {
  const roots = data.failures.filter((one) => one.is_root).length;
  const entry = (one) => {
    const details = h("details", h("summary", moment(one.at_s),
      h("span.kind" + (one.is_root ? ".root" : ".quiet"), one.is_root ? "root cause" : "follows"),
      h("span.what", one.summary)));
    details.addEventListener("toggle", () => {
      if (details.childElementCount > 1) return;
      const about = [`round ${one.round}`, one.node && `node ${one.node}`, one.host && `host ${one.host}`,
        one.rank >= 0 && `rank ${one.rank}`, one.others && `${one.others} more failures are not listed`];
      details.append(h("pre", one.lines.join("\n") || "no lines were recorded"), h("p.quiet", about.filter(Boolean).join(" · ")));
    });
    return details;
  };
  if (!data.failures.length) return section("Failures", h("p.quiet", "None."));
  return section(`Failures`, h("div.panel", data.failures.map(entry)),
    h("p.quiet", `${several(roots, "root cause")}, ${several(data.failures.length - roots, "failure")} that followed. Open one for its last lines.`));
}

function checkpoints() {
  if (!data.checkpoints.length) return null;
  const rows = data.checkpoints.slice().reverse().map((one) => [
    moment(one.at_s), count(one.step), one.reason ? "–" : size(one.bytes), one.reason ? "–" : duration(one.seconds), one.node,
    one.reason ? h("span.bad", "not written: ", one.reason) : one.path,
  ]);
  return section("Checkpoints", table([["Time (UTC)", ""], ["Step", "number"], ["Size", "number"], ["Took", "number"],
    ["Node", ""], ["Path", "wide"]], rows, null, 10));
}

function notices(title, all) {
  if (!all.length) return null;
  const rows = all.map((one) => [moment(one.at_s), h(`span.${one.severity === "error" ? "bad" : one.severity === "warning" ? "warn" : "quiet"}`, one.severity),
    one.node, one.text + (one.count > 1 ? ` (${one.count} times)` : "")]);
  return section(title, table([["Time (UTC)", ""], ["Severity", ""], ["Node", ""], ["Event", "wide"]], rows, null, 20));
}

function nodes() {
  const phase = (node, ...names) => names.reduce((sum, name) => sum + (node.phases[name] || 0), 0);
  const rows = data.nodes.map((node) => [node.node, node.host, node.address, node.workers, node.starts, node.failures,
    duration(phase(node, "training", "running")), duration(phase(node, "standing by")),
    duration(phase(node, "waiting for nodes", "checking")), moment(node.last_s), node.release]);
  return section("Nodes", table([["Node", ""], ["Host", ""], ["Address", ""], ["Workers", "number"], ["Starts", "number"],
    ["Failures", "number"], ["Training", "number"], ["Spare", "number"], ["Waiting", "number"], ["Last event (UTC)", ""],
    ["ft-run", ""]], rows, null, 50));
}

function redraw() {
  [colours, fills] = [new Map(), new Map()];
  for (const canvas of document.querySelectorAll("canvas")) if (canvas.redraw) canvas.redraw();
  window.timeline.draw();
}

page.append(title(), tiles(), whereTimeWent(), timeline(), ...[advice(), restarts(), failures(), checkpoints(),
  notices("Checks", data.checks), notices("Warnings and errors", data.notices), nodes()].filter(Boolean),
h("footer", `${count(data.events)} events of ${several(data.nodes.length, "node")}; times are in UTC. `, data.note && `${data.note}.`));
redraw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("resize", () => document.querySelectorAll("canvas.bar").forEach((bar) => bar.redraw()));
