// What the timeline answers to the pointer, the wheel and the keys.

class LiveTimeline extends Timeline {
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    return {x: event.clientX - box.left, y: event.clientY - box.top};
  }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY * 0.0022), this.time(this.point(event).x));
    } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      const moved = event.deltaX / this.width * (this.to - this.from);
      this.show(this.from + moved, this.to + moved);
    }
  }

  moved(event) {
    const {x, y} = this.point(event);
    if (this.drag) {
      this.drag.to = Math.max(this.left, Math.min(x, this.width - 8));
      this.draw();
      return;
    }
    const text = this.textAt(x, y);
    if (text) this.tell(text, event.clientX, event.clientY);
    else this.hide();
  }

  dropped() {
    const drag = this.drag;
    this.drag = null;
    if (drag && Math.abs(drag.to - drag.x) > 4) {
      const [from, to] = [this.time(drag.x), this.time(drag.to)].sort((a, b) => a - b);
      this.show(from, to);
    } else this.draw();
  }

  textAt(x, y) {
    const row = Math.floor((y - this.top - GAP + this.panel.scrollTop) / ROW);
    const isNode = y >= this.top && row >= 0 && row < this.rows.length;
    const isJob = y >= AXIS && y < AXIS + JOB + MARKS;
    if (x < this.left) return isNode ? this.aboutNode(this.rows[row].node) : "";
    if (isNode || isJob) {
      const marks = isJob ? this.marks : this.marksOf.get(this.rows[row].node.node) || [];
      const near = marks.filter((mark) => Math.abs(this.x(mark.at) - x) <= 5);
      if (near.length && (isNode || y >= AXIS + JOB)) {
        const texts = near.slice(0, 4).map((mark) => `${mark.text}\n${this.format.clock(mark.at)}`);
        return texts.join("\n") + (near.length > 4 ? `\nand ${near.length - 4} more` : "");
      }
      const {lane, name} = this.laneAt(isNode ? row : -1);
      return this.aboutPhase(lane, indexAt(lane.starts, this.time(x)), name);
    }
    return "";
  }

  aboutNode(node) {
    const lines = [node.node, node.host, node.address, node.release && `ft-run ${node.release}`];
    return lines.filter(Boolean).join("\n");
  }

  aboutPhase(lane, i, name) {
    if (i < 0 || lane.phases[i] >= this.phases.length) return "";
    const start = lane.starts[i];
    const end = i + 1 < lane.starts.length ? lane.starts[i + 1] : this.end;
    const {clock, duration} = this.format;
    return `${this.phases[lane.phases[i]]}, ${duration(end - start)}\n${name}\n${clock(start)} to ${clock(end)}`;
  }

  tell(text, x, y) {
    this.tip.textContent = text;
    this.tip.hidden = false;
    const box = this.tip.getBoundingClientRect();
    this.tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 12)) + "px";
    const below = y + 18 + box.height < innerHeight;
    this.tip.style.top = (below ? y + 18 : Math.max(8, y - box.height - 12)) + "px";
  }

  hide() {
    this.tip.hidden = true;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const span = this.to - this.from;
    const cursor = this.cursor || {row: -1, index: Math.max(0, indexAt(this.job.starts, this.from))};
    const at = this.laneAt(cursor.row).lane.starts[cursor.index] || 0;
    const acts = {
      "+": () => this.zoom(0.5, at), "=": () => this.zoom(0.5, at), "-": () => this.zoom(2, at),
      "0": () => this.show(0, this.end), Escape: () => this.hide(),
      ArrowLeft: () => this.go(cursor.row, cursor.index - 1),
      ArrowRight: () => this.go(cursor.row, cursor.index + (this.cursor ? 1 : 0)),
      ArrowUp: () => this.goRow(cursor.row - 1, at), ArrowDown: () => this.goRow(cursor.row + 1, at),
      Home: () => this.go(cursor.row, 0), End: () => this.go(cursor.row, Infinity),
      PageUp: () => this.show(this.from - span, this.from),
      PageDown: () => this.show(this.to, this.to + span),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  goRow(row, at) {
    const to = Math.max(-1, Math.min(row, this.rows.length - 1));
    if (to >= 0) {
      const y = to * ROW, room = this.height - this.top - ROW - 8;
      if (y < this.panel.scrollTop) this.panel.scrollTop = y;
      if (y > this.panel.scrollTop + room) this.panel.scrollTop = y - room;
    }
    const {starts} = this.laneAt(to).lane;
    this.go(to, Math.max(0, indexAt(starts, at)));
  }

  go(row, index) {
    const {lane, y, name} = this.laneAt(row);
    const last = lane.starts.length - 1;
    const to = Math.max(0, Math.min(index, last > 0 ? last - 1 : 0));
    this.cursor = {row, index: to};
    const start = lane.starts[to] || 0;
    if (start < this.from || start > this.to) {
      const half = (this.to - this.from) / 2;
      this.show(start - half, start + half);
    }
    this.draw();
    const text = this.aboutPhase(lane, to, name);
    this.spoken.textContent = text;
    const box = this.canvas.getBoundingClientRect();
    if (text) this.tell(text, box.left + Math.max(this.left, this.x(start)), box.top + y + 4);
  }
}
