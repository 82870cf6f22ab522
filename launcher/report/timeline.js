// The timeline: nodes as rows, phases as bars, failures and restarts as marks; on one canvas, of
// which only the rows in view are drawn. Its answers to pointer and keys are in the next file.

const AXIS = 26, JOB = 24, MARKS = 20, RATE = 40, ROW = 18, GAP = 4;

class Timeline {
  /**
   * @param {object} data the report
   * @param {object[]} marks {at, kind: "failure"|"restart"|"checkpoint", node, text}, in order
   * @param {object} format functions clock(seconds since the start), duration(seconds)
   */
  constructor(data, marks, format) {
    this.data = data;
    this.format = format;
    this.phases = data.phases;
    this.job = decoded(data.job_lane);
    this.all = data.nodes.map((node) => ({node, ...decoded(node.lane)}));
    this.rows = this.all;
    this.marks = marks;
    const order = ["restart", "checkpoint", "failure"];  // the last ones are above the others
    this.drawn = marks.slice().sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind));
    this.marksOf = new Map();
    for (const mark of marks) {
      if (!mark.node) continue;
      if (!this.marksOf.has(mark.node)) this.marksOf.set(mark.node, []);
      this.marksOf.get(mark.node).push(mark);
    }
    const ends = this.all.map((row) => row.starts[row.starts.length - 1] || 0);
    this.end = ends.reduce((most, one) => Math.max(most, one), 1);
    this.from = 0;
    this.to = this.end;
    this.rank = new Map(SEVERITY.map((name, i) => [this.phases.indexOf(name), SEVERITY.length - i]));
    this.cursor = null;
    this.drag = null;
    const stops = marks.filter((mark) => mark.kind === "restart").map((mark) => mark.at);
    let stop = 0;
    this.breaks = data.rates.map(([at]) => {  // whether a restart is before it
      const from = stop;
      while (stop < stops.length && stops[stop] <= at) stop++;
      return stop > from;
    });
    const measure = document.createElement("canvas").getContext("2d");
    measure.font = "12px system-ui, sans-serif";
    const names = data.nodes.map((node) => measure.measureText(node.node).width);
    this.longest = names.reduce((most, one) => Math.max(most, one), 0);
    this.build();
  }

  build() {
    const make = (tag, name, text) => {
      const element = document.createElement(tag);
      if (name) element.className = name;
      if (text) element.textContent = text;
      return element;
    };
    this.root = make("div");
    const bar = make("div", "toolbar");
    const button = (text, label, act) => {
      const one = make("button", "", text);
      one.type = "button";
      one.setAttribute("aria-label", label);
      one.addEventListener("click", act);
      bar.append(one);
    };
    button("+", "Zoom in", () => this.zoom(0.5));
    button("−", "Zoom out", () => this.zoom(2));
    button("All", "Show the whole time", () => this.show(0, this.end));
    this.filter = make("input");
    this.filter.type = "search";
    this.filter.placeholder = "Filter nodes";
    this.filter.setAttribute("aria-label", "Filter nodes by name, host or address");
    this.filter.addEventListener("input", () => this.choose());
    this.order = make("select");
    this.order.setAttribute("aria-label", "Order of the nodes");
    for (const text of ["By name", "Failures first", "Least training first"]) {
      this.order.append(make("option", "", text));
    }
    this.order.addEventListener("change", () => this.choose());
    if (this.all.length > 1) bar.append(this.filter, this.order);
    bar.append(make("span", "quiet", "Drag or Ctrl + wheel to zoom; arrow keys, +, − and 0"));
    this.panel = make("div", "panel timeline");
    this.canvas = make("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label",
      "Timeline. Up and down choose a node, left and right an interval; plus and minus zoom.");
    this.spacer = make("div", "spacer");
    this.panel.append(this.canvas, this.spacer);
    this.tip = make("div", "tip");
    this.tip.hidden = true;
    this.spoken = make("div", "spoken");
    this.spoken.setAttribute("role", "status");
    this.root.append(bar, this.panel, this.tip, this.spoken);
    this.listen();
  }

  listen() {
    const canvas = this.canvas;
    this.panel.addEventListener("scroll", () => this.draw());
    canvas.addEventListener("wheel", (event) => this.wheel(event), {passive: false});
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerleave", () => this.hide());
    canvas.addEventListener("pointerdown", (event) => {
      const {x} = this.point(event);
      if (event.pointerType === "touch") this.moved(event);
      if (event.pointerType === "touch" || event.button || x < this.left) return;
      this.drag = {x, to: x};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => this.dropped());
    canvas.addEventListener("dblclick", () => this.show(0, this.end));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => {
      this.cursor = null;
      this.hide();
      this.draw();
    });
    new ResizeObserver(() => this.resize()).observe(this.panel);
  }

  choose() {
    const text = this.filter.value.trim().toLowerCase();
    const has = ({node}) => [node.node, node.host, node.address].some((one) =>
      one.toLowerCase().includes(text));
    this.rows = this.all.filter(has);
    const training = ({node}) => (node.phases.training || 0) + (node.phases.running || 0);
    if (this.order.selectedIndex === 1) this.rows.sort((a, b) => b.node.failures - a.node.failures);
    if (this.order.selectedIndex === 2) this.rows.sort((a, b) => training(a) - training(b));
    this.cursor = null;
    this.resize();
  }

  get top() {
    return AXIS + JOB + MARKS + (this.data.rates.length > 1 ? RATE : 0);
  }

  resize() {
    const whole = this.top + this.rows.length * ROW + 8;
    this.width = this.panel.clientWidth;
    this.height = Math.min(whole, 560);
    this.left = Math.round(Math.max(76, Math.min(this.longest + 22, this.width * 0.26, 190)));
    this.canvas.style.height = this.height + "px";
    this.spacer.style.height = Math.max(0, whole - this.height) + "px";
    this.context = sized(this.canvas, this.width, this.height);
    this.draw();
  }

  x(time) {
    return this.left + (time - this.from) / (this.to - this.from) * (this.width - this.left - 8);
  }

  time(x) {
    return this.from + (x - this.left) / (this.width - this.left - 8) * (this.to - this.from);
  }

  show(from, to) {
    const least = Math.min(0.05, this.end);
    const span = Math.min(this.end, Math.max(least, to - from));
    this.from = Math.max(0, Math.min(from, this.end - span));
    this.to = this.from + span;
    this.draw();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  // --- drawing ----------------------------------------------------------------------------------

  draw() {
    const c = this.context;
    if (!c) return;
    c.clearRect(0, 0, this.width, this.height);
    this.drawRows(c);
    c.fillStyle = colour("--panel");
    c.fillRect(0, 0, this.width, this.top);
    this.drawAxis(c);
    this.label(c, "job", AXIS + JOB / 2, true);
    this.drawLane(c, this.job, AXIS + 2, JOB - 4);
    this.label(c, "events", AXIS + JOB + MARKS / 2, false);
    this.drawMarks(c, this.drawn, AXIS + JOB + MARKS / 2, true);
    if (this.data.rates.length > 1) this.drawRates(c);
    c.strokeStyle = colour("--rule-strong");
    c.lineWidth = 1;
    c.beginPath();
    c.moveTo(0, this.top - 0.5);
    c.lineTo(this.width, this.top - 0.5);
    c.stroke();
    this.drawCursor(c);
  }

  drawRows(c) {
    const scrolled = this.panel.scrollTop;
    const first = Math.max(0, Math.floor(scrolled / ROW));
    const last = Math.min(this.rows.length, Math.ceil((scrolled + this.height - this.top) / ROW) + 1);
    for (let i = first; i < last; i++) {
      const row = this.rows[i];
      const y = this.top + GAP + i * ROW - scrolled;
      this.label(c, row.node.node, y + ROW / 2 - GAP / 2, false);
      this.drawLane(c, row, y, ROW - GAP);
      this.drawMarks(c, this.marksOf.get(row.node.node) || [], y + ROW / 2 - GAP / 2, false);
    }
  }

  label(c, text, y, isStrong) {
    c.font = `${isStrong ? 600 : 400} 12px system-ui, sans-serif`;
    c.fillStyle = colour(isStrong ? "--ink" : "--soft");
    c.textBaseline = "middle";
    c.textAlign = "left";
    let shown = text;
    const room = this.left - 18;
    if (c.measureText(text).width > room) {
      let keep = text.length;
      while (keep > 1 && c.measureText("…" + text.slice(-keep)).width > room) keep--;
      shown = "…" + text.slice(-keep);  // names of nodes differ at their end
    }
    c.fillText(shown, 10, y);
  }

  drawLane(c, lane, y, height) {
    const {starts, phases} = lane;
    let pixel = -1, worst = -1;
    const flush = () => {
      if (worst >= 0) this.fillPhase(c, worst, pixel, y, 1, height);
      worst = -1;
    };
    for (let i = Math.max(0, indexAt(starts, this.from)); i < starts.length; i++) {
      if (starts[i] > this.to) break;
      if (phases[i] >= this.phases.length) continue;
      const end = i + 1 < starts.length ? starts[i + 1] : this.end;
      const x = Math.max(this.left, this.x(starts[i]));
      const right = Math.min(this.width - 8, this.x(end));
      if (right - x >= 1) {
        this.fillPhase(c, phases[i], x, y, right - x, height);
        continue;
      }
      const at = Math.floor(x);
      if (at !== pixel) flush();
      pixel = at;
      if (worst < 0 || (this.rank.get(phases[i]) || 0) > (this.rank.get(worst) || 0)) worst = phases[i];
    }
    flush();
  }

  fillPhase(c, phase, x, y, width, height) {
    c.fillStyle = fillOf(c, this.phases[phase]);
    c.fillRect(x, y, width, height);
  }

  drawAxis(c) {
    const steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
      3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 2592000];
    const room = (this.to - this.from) / Math.max(1, (this.width - this.left) / 96);
    const step = steps.find((one) => one >= room) || room;
    c.font = "11.5px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "left";
    c.lineWidth = 1;
    const offset = this.data.began_s % step;
    for (let at = Math.ceil((this.from + offset) / step) * step - offset; at <= this.to; at += step) {
      const x = Math.round(this.x(at)) + 0.5;
      c.strokeStyle = colour("--rule");
      c.beginPath();
      c.moveTo(x, 4);
      c.lineTo(x, this.top);
      c.stroke();
      if (x > this.width - 50) continue;
      c.fillStyle = colour("--soft");
      c.fillText(this.format.tick(at, step), x + 4, 13);
    }
  }

  drawRates(c) {
    const y = AXIS + JOB + MARKS, rates = this.data.rates;
    const most = rates.reduce((top, one) => Math.max(top, one[2]), 0);
    this.label(c, "steps/s", y + RATE / 2 - 7, false);
    this.label(c, "max " + this.format.number(most), y + RATE / 2 + 8, false);
    c.strokeStyle = colour("--accent");
    c.lineWidth = 1.5;
    c.beginPath();
    let last = -Infinity;
    for (const [i, [at, , rate]] of rates.entries()) {
      const x = this.x(at), height = rate / most * (RATE - 12);
      if (x < this.left || x > this.width - 8) continue;
      if (at - last > 150 || this.breaks[i]) c.moveTo(x, y + RATE - 6 - height);  // no report: no line
      else c.lineTo(x, y + RATE - 6 - height);
      last = at;
    }
    c.stroke();
  }

  drawMarks(c, marks, y, isJob) {
    for (const mark of marks) {
      const x = this.x(mark.at);
      if (x < this.left - 1 || x > this.width - 7) continue;
      if (mark.kind === "restart" && isJob) {
        c.strokeStyle = colour("--soft");
        c.setLineDash([2, 3]);
        c.lineWidth = 1;
        c.beginPath();
        c.moveTo(x, AXIS);
        c.lineTo(x, this.height);
        c.stroke();
        c.setLineDash([]);
        c.fillStyle = colour("--ink");
        c.beginPath();
        c.moveTo(x - 4.5, AXIS - 6);
        c.lineTo(x + 4.5, AXIS - 6);
        c.lineTo(x, AXIS + 1);
        c.fill();
      } else if (mark.kind === "failure") {
        c.strokeStyle = colour("--panel");
        c.lineWidth = 5;
        for (let i = 0; i < 2; i++) {
          c.beginPath();
          c.moveTo(x - 4, y - 4);
          c.lineTo(x + 4, y + 4);
          c.moveTo(x + 4, y - 4);
          c.lineTo(x - 4, y + 4);
          c.stroke();
          c.strokeStyle = colour("--bad");
          c.lineWidth = 2.2;
        }
      } else if (mark.kind === "checkpoint" && isJob) {
        c.fillStyle = c.strokeStyle = colour("--accent");
        c.lineWidth = 1.4;
        c.beginPath();
        c.moveTo(x, y - 4);
        c.lineTo(x + 3.5, y);
        c.lineTo(x, y + 4);
        c.lineTo(x - 3.5, y);
        c.closePath();
        if (mark.isLost) c.stroke();
        else c.fill();
      }
    }
  }

  drawCursor(c) {
    if (this.drag) {
      c.fillStyle = colour("--accent");
      c.globalAlpha = 0.18;
      c.fillRect(Math.min(this.drag.x, this.drag.to), AXIS, Math.abs(this.drag.to - this.drag.x), this.height);
      c.globalAlpha = 1;
    }
    if (!this.cursor) return;
    const {lane, y, height} = this.laneAt(this.cursor.row);
    const {starts} = lane, i = this.cursor.index;
    const x = Math.max(this.left, this.x(starts[i]));
    const right = Math.min(this.width - 8, this.x(i + 1 < starts.length ? starts[i + 1] : this.end));
    c.strokeStyle = colour("--focus");
    c.lineWidth = 2;
    c.strokeRect(x - 1, y - 1, Math.max(3, right - x + 2), height + 2);
  }

  laneAt(row) {
    if (row < 0) return {lane: this.job, y: AXIS + 2, height: JOB - 4, name: "job"};
    const y = this.top + GAP + row * ROW - this.panel.scrollTop;
    return {lane: this.rows[row], y, height: ROW - GAP, name: this.rows[row].node.node};
  }
}
