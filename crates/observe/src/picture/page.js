"use strict";
(() => {
  const { plans, colours, text } = JSON.parse(document.getElementById("data").textContent);
  const UNIT = 256, ROW_LIMIT = 200;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (category) => colours[category][dark.matches ? 2 : 1];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const word = (pairs, key) => (pairs.find(([name]) => name === key) || [key, key])[1];
  const category = (name) => word(text.categories, name);

  // ---- data ----

  // The inverse of `columns::encode`. Numbers stay below 2^53, so they need no big integers.
  function decode(column) {
    const bytes = atob(column), numbers = [];
    let before = 0, rest = 0, scale = 1;
    for (let i = 0; i < bytes.length; i++) {
      const byte = bytes.charCodeAt(i);
      rest += (byte & 127) * scale;
      if (byte & 128) { scale *= 128; continue; }
      before += rest % 2 ? -(rest + 1) / 2 : rest / 2;
      numbers.push(before);
      rest = 0; scale = 1;
    }
    return numbers;
  }

  const nameOf = (plan, index, layer) =>
    layer ? plan.names[index].split(".").map((part) => (part === "#" ? layer - 1 : part)).join(".") : plan.names[index];

  function unpack(plan) {
    const b = Object.fromEntries(Object.entries(plan.bands).map(([key, column]) => [key, decode(column)]));
    const bands = b.name.map((name, i) => ({
      name: nameOf(plan, name, b.layer[i]), detail: plan.names[b.detail[i]], layer: b.layer[i], category: b.category[i],
      offset: b.offset[i] * UNIT, bytes: b.bytes[i], band: true, first: 0, last: 0, recomputed: false, className: "",
    }));
    plan.timelines = plan.timelines.map((t) => {
      const column = (key) => decode(t[key]);
      const [op, phase, stepLayer, ns] = ["op", "phase", "stepLayer", "ns"].map(column);
      const [name, className, detail, layer, category, recomputed, offset, bytes, first, length] =
        ["bufferName", "class", "detail", "layer", "category", "recomputed", "offset", "bytes", "first", "length"].map(column);
      const steps = op.map((o, i) => ({ op: plan.names[o], phase: plan.names[phase[i]], layer: stepLayer[i], ns: ns[i] }));
      const ends = { steps: [0], time: [0] };
      for (const step of steps) {
        ends.steps.push(ends.steps.length);
        ends.time.push(ends.time[ends.time.length - 1] + Math.max(step.ns, 1) / 1e6);
      }
      const buffers = name.map((n, i) => ({
        name: nameOf(plan, n, layer[i]), className: plan.names[className[i]], detail: plan.names[detail[i]], layer: layer[i],
        category: category[i], recomputed: recomputed[i] === 1, offset: offset[i] * UNIT, bytes: bytes[i],
        first: first[i], last: first[i] + length[i], band: false,
      }));
      const all = bands.map((band) => ({ ...band, last: steps.length - 1 })).concat(buffers);
      // Every other layer is paler, so that one sees where a layer ends.
      for (const b of all) b.look = b.category * 2 + (b.layer % 2);
      all.sort((x, y) => x.look - y.look);
      return { name: t.name, peakStep: t.peakStep, peak: t.peak, steps, ends, buffers: all, live: liveBytes(all, steps.length) };
    });
  }

  function liveBytes(buffers, steps) {
    const change = new Float64Array(steps + 1);
    for (const b of buffers) {
      const bytes = Math.ceil(b.bytes / UNIT) * UNIT;
      change[b.first] += bytes;
      change[b.last + 1] -= bytes;
    }
    let sum = 0;
    return Array.from({ length: steps }, (_, i) => (sum += change[i]));
  }

  // ---- words and figures ----

  function size(bytes, digits = 2) {
    for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
      if (Math.abs(bytes) >= unit) return (bytes / unit).toFixed(digits) + " " + name;
    return bytes + " B";
  }
  const milliseconds = (ms) => (ms >= 1000 ? (ms / 1000).toFixed(2) + " s" : ms >= 1 ? ms.toFixed(1) + " ms" : (ms * 1000).toFixed(1) + " µs");
  const whole = (number) => Math.round(number).toLocaleString("en-US").replaceAll(",", "\u202f");

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value !== false && value !== null) made.setAttribute(key, value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  function niceStep(range, count) {
    const raw = range / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw);
  }
  // Marks of memory lie on powers of two.
  const niceBytes = (range, count) => 2 ** Math.ceil(Math.log2(Math.max(range / Math.max(count, 1), 256)));

  // ---- the plot ----

  const PHASES = { forward: 0.16, recompute: 0.62, backward: 0.34, update: 0.5 };

  class Plot {
    constructor(plan, canvas, tip, chosen) {
      Object.assign(this, { plan, canvas, tip, chosen, axis: "steps", only: null, selected: null, hovered: null, pointers: new Map() });
      this.context = canvas.getContext("2d");
      this.timeline = plan.timelines[0];
      this.events();
      new ResizeObserver(() => this.draw()).observe(canvas);
      dark.addEventListener("change", () => { this.pattern = null; this.draw(); });
      this.reset();
    }

    show(name) {
      this.timeline = this.plan.timelines.find((t) => t.name === name) || this.plan.timelines[0];
      this.selected = this.hovered = null;
      this.reset();
    }

    setAxis(axis) {
      const old = this.times, at = (t) => { const i = old.findIndex((end) => end >= t); return i < 0 ? old.length - 1 : i; };
      const [from, to] = [at(this.view.t0), at(this.view.t1)];
      this.axis = axis;
      Object.assign(this.view, { t0: this.times[from], t1: Math.max(this.times[to], this.times[from] + 1e-9) });
      this.draw();
    }

    get times() { return this.timeline.ends[this.axis]; }
    get end() { return this.times[this.times.length - 1] || 1; }
    get ceiling() {
      const { arena, arenaBudget } = this.plan;
      const near = arenaBudget > 0 && arenaBudget < arena * 1.5;
      return (near ? Math.max(arena, arenaBudget) : arena) * 1.05;
    }

    reset() { this.view = { t0: 0, t1: this.end, a0: 0, a1: this.ceiling }; this.draw(); }

    toPeak() {
      const middle = this.times[this.timeline.peakStep], span = this.end / 12;
      this.view = { t0: middle - span, t1: middle + span, a0: 0, a1: this.ceiling };
      this.clamp(); this.draw();
    }

    focus(buffer) {
      this.selected = buffer;
      const [from, to] = [this.times[buffer.first], this.times[buffer.last + 1]];
      if (!buffer.band && (to - from) / (this.view.t1 - this.view.t0) < 0.004) {
        const span = (to - from) * 40;
        this.view.t0 = (from + to - span) / 2; this.view.t1 = (from + to + span) / 2;
      } else if (!buffer.band && (to < this.view.t0 || from > this.view.t1)) {
        const span = this.view.t1 - this.view.t0;
        this.view.t0 = from - span / 4; this.view.t1 = this.view.t0 + span;
      }
      if (buffer.offset < this.view.a0 || buffer.offset + buffer.bytes > this.view.a1) { this.view.a0 = 0; this.view.a1 = this.ceiling; }
      this.clamp(); this.draw();
    }

    get frame() {
      const { clientWidth: width, clientHeight: height } = this.canvas;
      return { left: width < 520 ? 46 : 62, right: width - 10, top: 12, bottom: height - 46, width, height };
    }

    draw() {
      if (this.queued) return;
      this.queued = requestAnimationFrame(() => { this.queued = null; this.paint(); });
    }

    paint() {
      const { canvas, context: c, frame: f, view } = this;
      const ratio = devicePixelRatio || 1;
      if (!f.width || !f.height) return;
      if (canvas.width !== Math.round(f.width * ratio) || canvas.height !== Math.round(f.height * ratio)) {
        canvas.width = Math.round(f.width * ratio);
        canvas.height = Math.round(f.height * ratio);
      }
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.clearRect(0, 0, f.width, f.height);
      this.ink = style("--ink"); this.faint = style("--faint"); this.line = style("--line"); this.accent = style("--accent");
      this.x = (t) => f.left + ((t - view.t0) / (view.t1 - view.t0)) * (f.right - f.left);
      this.y = (a) => f.bottom - ((a - view.a0) / (view.a1 - view.a0)) * (f.bottom - f.top);
      this.grid();
      c.save();
      c.beginPath(); c.rect(f.left, f.top, f.right - f.left, f.bottom - f.top); c.clip();
      this.rectangles();
      this.labels();
      this.marks();
      c.restore();
      this.phases();
    }

    grid() {
      const { context: c, frame: f, view } = this;
      c.font = "11px system-ui, sans-serif"; c.textBaseline = "middle"; c.textAlign = "right"; c.lineWidth = 1;
      const step = niceBytes(view.a1 - view.a0, (f.bottom - f.top) / 46);
      for (let a = Math.ceil(view.a0 / step) * step; a <= view.a1; a += step) {
        const y = Math.round(this.y(a)) + 0.5;
        c.strokeStyle = this.line;
        c.beginPath(); c.moveTo(f.left, y); c.lineTo(f.right, y); c.stroke();
        c.fillStyle = this.faint;
        const unit = step >= 2 ** 30 ? 0 : 1;
        c.fillText(a === 0 ? "0" : f.left < 60 ? size(a, unit).replace("iB", "") : size(a, unit), f.left - 6, y);
      }
    }

    boxOf(b) {
      const x0 = this.x(this.times[b.first]), x1 = this.x(this.times[b.last + 1]);
      const y0 = this.y(b.offset + b.bytes), y1 = this.y(b.offset);
      return [x0, y0, x1 - x0, y1 - y0];
    }

    // In the order of categories, so that the colour changes a dozen times and not twenty thousand.
    rectangles() {
      const { context: c, frame: f, view, times } = this;
      let look = -1;
      const perTime = (f.right - f.left) / (view.t1 - view.t0), perByte = (f.bottom - f.top) / (view.a1 - view.a0);
      for (const b of this.timeline.buffers) {
        if (b.offset > view.a1 || b.offset + b.bytes < view.a0 || times[b.first] > view.t1 || times[b.last + 1] < view.t0) continue;
        if (b.look !== look) {
          look = b.look;
          c.fillStyle = colour(b.category);
          c.globalAlpha = (this.only === null || this.only === b.category ? 1 : 0.13) * (b.layer % 2 ? 0.78 : 1);
        }
        // `boxOf`, written out: a list made for every buffer of every frame would cost more than the drawing.
        const y = f.bottom - (b.offset + b.bytes - view.a0) * perByte;
        let x = f.left + (times[b.first] - view.t0) * perTime, w = (times[b.last + 1] - times[b.first]) * perTime;
        const h = b.bytes * perByte;
        if (w < 0.3 && h < 0.3) continue;
        if (x < f.left - 2) { w += x - f.left + 2; x = f.left - 2; }
        if (x + w > f.right + 2) w = f.right + 2 - x;
        // A hair of ground between neighbours, as far as there is room for it.
        const gapX = w > 3 ? 0.6 : 0, gapY = h > 3 ? 0.6 : 0;
        c.fillRect(x, y + gapY / 2, Math.max(w - gapX, 0.5), Math.max(h - gapY, 0.2));
      }
      c.globalAlpha = 1;
      c.fillStyle = this.hatch();
      for (const b of this.timeline.buffers) {
        if (!b.recomputed || b.bytes * perByte < 1.5 || (this.only !== null && this.only !== b.category)) continue;
        if (b.offset > view.a1 || b.offset + b.bytes < view.a0 || times[b.first] > view.t1 || times[b.last + 1] < view.t0) continue;
        const [x, y, w, h] = this.boxOf(b);
        if (w > 1.5 && h > 1.5) c.fillRect(x, y, w, h);
      }
    }

    hatch() {
      if (this.pattern) return this.pattern;
      const tile = document.createElement("canvas");
      tile.width = tile.height = 7;
      const c = tile.getContext("2d");
      c.strokeStyle = dark.matches ? "rgb(0 0 0 / 50%)" : "rgb(255 255 255 / 62%)";
      c.lineWidth = 1.6;
      for (const shift of [-7, 0, 7]) { c.beginPath(); c.moveTo(shift - 1, 8); c.lineTo(shift + 8, -1); c.stroke(); }
      return (this.pattern = this.context.createPattern(tile, "repeat"));
    }

    labels() {
      const { context: c, frame: f } = this;
      c.textAlign = "left"; c.textBaseline = "middle"; c.font = "11px system-ui, sans-serif";
      let written = 0;
      const least = (14 * (this.view.a1 - this.view.a0)) / (f.bottom - f.top);
      for (const b of this.timeline.buffers) {
        if (b.bytes < least) continue;
        let [x, y, w, h] = this.boxOf(b);
        if (h < 14 || y > f.bottom || y + h < f.top) continue;
        const from = Math.max(x, f.left), to = Math.min(x + w, f.right);
        if (to - from < 46 || written > 400 || (this.only !== null && this.only !== b.category)) continue;
        const label = to - from > 190 ? b.name + "  " + size(b.bytes, 1) : b.name;
        const room = Math.floor((to - from - 8) / 6.1);
        c.fillStyle = dark.matches ? "#0c0e11" : "#ffffff";
        const middle = (Math.max(y, f.top) + Math.min(y + h, f.bottom)) / 2;
        c.fillText(label.length > room ? label.slice(0, room - 1) + "…" : label, from + 5, middle);
        written++;
      }
    }

    marks() {
      const { context: c, frame: f, plan, timeline, view } = this;
      const placed = [];
    const pill = (words, x, y, fill) => {
        c.font = "600 11px system-ui, sans-serif";
        const w = c.measureText(words).width + 12;
        const left = Math.min(Math.max(x - w / 2, f.left + 2), f.right - w - 2);
        let top = Math.min(Math.max(y, f.top + 2), f.bottom - 20);
        if (placed.some((other) => Math.abs(other.top - top) < 20 && left < other.right + 4 && other.left < left + w + 4)) top += 24;
        placed.push({ left, right: left + w, top });
        c.fillStyle = fill; c.beginPath(); c.roundRect(left, top, w, 18, 5); c.fill();
        c.fillStyle = dark.matches ? "#111418" : "#ffffff"; c.textAlign = "left"; c.textBaseline = "middle";
        c.fillText(words, left + 6, top + 9.5);
      };
      // The moment of the peak, with the buffers that make it in outline.
      const from = this.x(this.times[timeline.peakStep]), to = this.x(this.times[timeline.peakStep + 1]);
      c.strokeStyle = this.ink; c.lineWidth = 1;
      if (to - from > 30) for (const b of timeline.buffers) {
        if (b.first > timeline.peakStep || b.last < timeline.peakStep) continue;
        const [, y, , h] = this.boxOf(b);
        if (h > 2) c.strokeRect(from, y + 0.5, to - from, h - 1);
      }
      c.fillStyle = this.ink; c.globalAlpha = 0.85;
      const top = this.y(timeline.peak);
      c.fillRect((from + to) / 2 - 0.75, f.top, 1.5, f.bottom - f.top);
      c.globalAlpha = 1;
      // The top of the arena and the line of the budget.
      const level = (bytes, stroke, dash) => {
        const y = Math.round(this.y(bytes)) + 0.5;
        c.strokeStyle = stroke; c.lineWidth = 1.5; c.setLineDash(dash);
        c.beginPath(); c.moveTo(f.left, y); c.lineTo(f.right, y); c.stroke(); c.setLineDash([]);
        return y;
      };
      if (plan.arenaBudget > 0 && plan.arenaBudget <= view.a1) {
        const y = level(plan.arenaBudget, this.accent, [7, 4]);
        pill(`${text.budget} ${size(plan.budget)}`, f.right - 60, y < f.top + 24 ? y + 4 : y - 22, this.accent);
      } else if (plan.arenaBudget > view.a1) {
        pill(`↑ ${text.budgetAbove}: ${size(plan.budget)}`, f.right - 70, f.top + 2, this.accent);
      }
      level(plan.arena, this.faint, [2, 3]);
      pill(`${text.peak} ${size(timeline.peak)}`, (from + to) / 2, top - 24, this.ink);
      for (const [b, width] of [[this.hovered, 1.5], [this.selected, 2.5]]) {
        if (!b) continue;
        const [x, y, w, h] = this.boxOf(b);
        c.strokeStyle = this.ink; c.lineWidth = width;
        c.strokeRect(x - 1, y - 1, Math.max(w, 2) + 2, Math.max(h, 2) + 2);
      }
    }

    phases() {
      const { context: c, frame: f, timeline, times, view } = this;
      const top = f.bottom + 4, height = 15;
      c.save();
      c.beginPath(); c.rect(f.left, top, f.right - f.left, 42); c.clip();
      let start = 0;
      for (let i = 1; i <= timeline.steps.length; i++) {
        if (i < timeline.steps.length && timeline.steps[i].phase === timeline.steps[start].phase) continue;
        const phase = timeline.steps[start].phase, x0 = this.x(times[start]), x1 = this.x(times[i]);
        c.globalAlpha = PHASES[phase] ?? 0.3; c.fillStyle = this.faint;
        c.fillRect(x0, top, Math.max(x1 - x0 - (x1 - x0 > 3 ? 1 : 0), 0.5), height);
        c.globalAlpha = 1;
        const label = word(text.phases, phase), from = Math.max(x0, f.left), to = Math.min(x1, f.right);
        c.font = "11px system-ui, sans-serif";
        if (to - from > c.measureText(label).width + 8) {
          c.fillStyle = this.ink; c.textAlign = "center"; c.textBaseline = "middle"; c.fillText(label, (from + to) / 2, top + height / 2 + 0.5);
        }
        start = i;
      }
      c.fillStyle = this.faint; c.textAlign = "center"; c.textBaseline = "middle"; c.font = "11px system-ui, sans-serif";
      const step = this.axis === "steps" ? Math.max(1, niceStep(view.t1 - view.t0, (f.right - f.left) / 90)) : niceStep(view.t1 - view.t0, (f.right - f.left) / 90);
      for (let t = Math.ceil(view.t0 / step) * step; t <= view.t1; t += step)
        c.fillText(this.axis === "steps" ? String(Math.round(t)) : milliseconds(t).replace("0.0 µs", "0"), Math.min(Math.max(this.x(t), f.left + 14), f.right - 18), top + 29);
      c.restore();
    }

    // ---- pointer and keys ----

    clamp() {
      const v = this.view, end = this.end, ceiling = this.ceiling * 1.6;
      const width = Math.min(Math.max(v.t1 - v.t0, end / 2e5), end * 1.2), height = Math.min(Math.max(v.a1 - v.a0, 4096), ceiling);
      v.t0 = Math.min(Math.max(v.t0, -width * 0.2), end - width * 0.8); v.t1 = v.t0 + width;
      v.a0 = Math.min(Math.max(v.a0, -height * 0.05), ceiling - height * 0.5); v.a1 = v.a0 + height;
    }

    zoom(px, py, factorT, factorA) {
      const { frame: f, view: v } = this;
      const t = v.t0 + ((px - f.left) / (f.right - f.left)) * (v.t1 - v.t0), a = v.a0 + ((f.bottom - py) / (f.bottom - f.top)) * (v.a1 - v.a0);
      Object.assign(v, { t0: t - (t - v.t0) * factorT, t1: t + (v.t1 - t) * factorT, a0: a - (a - v.a0) * factorA, a1: a + (v.a1 - a) * factorA });
      this.clamp(); this.draw();
    }

    pan(dx, dy) {
      const { frame: f, view: v } = this;
      const t = (dx / (f.right - f.left)) * (v.t1 - v.t0), a = (dy / (f.bottom - f.top)) * (v.a1 - v.a0);
      Object.assign(v, { t0: v.t0 - t, t1: v.t1 - t, a0: v.a0 + a, a1: v.a1 + a });
      this.clamp(); this.draw();
    }

    at(px, py) {
      const { frame: f, view: v, times } = this;
      if (px < f.left || px > f.right || py < f.top || py > f.bottom) return null;
      const t = v.t0 + ((px - f.left) / (f.right - f.left)) * (v.t1 - v.t0), a = v.a0 + ((f.bottom - py) / (f.bottom - f.top)) * (v.a1 - v.a0);
      return this.timeline.buffers.find((b) => b.offset <= a && a < b.offset + b.bytes && times[b.first] <= t && t < times[b.last + 1]) || null;
    }

    hover(px, py) {
      const found = this.at(px, py);
      if (found !== this.hovered) { this.hovered = found; this.draw(); }
      this.describe(found, px, py);
    }

    describe(b, px, py) {
      const { tip, frame: f, timeline } = this;
      if (!b) { tip.style.visibility = "hidden"; return; }
      const line = (label, value) => element("span", {}, label + " ", element("i", {}, value));
      const operator = (i) => { const s = timeline.steps[i]; return `${i} ${s.op}${s.layer ? " @" + (s.layer - 1) : ""}`; };
      tip.replaceChildren(
        element("b", {}, b.name),
        line(category(colours[b.category][0]) + (b.className ? " · " + b.className : "") + ":", size(b.bytes)),
        ...(b.detail ? [line(text.content, b.detail)] : []),
        ...(b.layer ? [line(text.layer, String(b.layer - 1))] : []),
        line(text.address, size(b.offset) + " – " + size(b.offset + b.bytes)),
        line(text.steps, b.band ? text.wholeRun : operator(b.first) + " → " + operator(b.last)),
        ...(b.recomputed ? [line(text.recomputed, "")] : []),
        ...(b.first <= timeline.peakStep && timeline.peakStep <= b.last ? [line(text.atPeak, text.yes)] : []),
      );
      const { offsetWidth: w, offsetHeight: h } = tip;
      tip.style.left = Math.max(4, px + 16 + w > f.width ? px - w - 12 : px + 16) + "px";
      tip.style.top = Math.max(4, Math.min(py + 14, f.height - h - 6)) + "px";
      tip.style.visibility = "visible";
    }

    events() {
      const { canvas, pointers } = this;
      const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
      canvas.addEventListener("wheel", (event) => {
        event.preventDefault();
        const factor = Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.0045);
        this.zoom(...place(event), event.shiftKey ? 1 : factor, event.altKey ? 1 : factor);
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => {
        canvas.setPointerCapture(event.pointerId);
        pointers.set(event.pointerId, place(event));
        this.moved = 0;
      });
      canvas.addEventListener("pointermove", (event) => {
        const [px, py] = place(event), before = pointers.get(event.pointerId);
        if (!before) return this.hover(px, py);
        const others = [...pointers.entries()].filter(([id]) => id !== event.pointerId);
        if (others.length === 0) {
          this.moved += Math.abs(px - before[0]) + Math.abs(py - before[1]);
          if (this.moved > 4) { this.pan(px - before[0], py - before[1]); this.tip.style.visibility = "hidden"; }
        } else {
          const [ox, oy] = others[0][1];
          const ratio = (was, is) => (Math.abs(is) < 24 || Math.abs(was) < 24 ? 1 : Math.abs(was / is));
          this.moved = 99;
          this.zoom((px + ox) / 2, (py + oy) / 2, ratio(before[0] - ox, px - ox), ratio(before[1] - oy, py - oy));
        }
        pointers.set(event.pointerId, [px, py]);
      });
      const release = (event) => {
        if (pointers.delete(event.pointerId) && this.moved <= 4 && event.type === "pointerup") {
          const found = this.at(...place(event));
          this.selected = found === this.selected ? null : found;
          this.describe(found, ...place(event));
          this.chosen(this.selected);
          this.draw();
        }
      };
      canvas.addEventListener("pointerup", release);
      canvas.addEventListener("pointercancel", release);
      canvas.addEventListener("pointerleave", () => { this.hovered = null; this.tip.style.visibility = "hidden"; this.draw(); });
      canvas.addEventListener("dblclick", () => this.reset());
      canvas.addEventListener("keydown", (event) => {
        const { frame: f } = this, middle = [(f.left + f.right) / 2, (f.top + f.bottom) / 2];
        const act = {
          ArrowLeft: () => this.pan(60, 0), ArrowRight: () => this.pan(-60, 0), ArrowUp: () => this.pan(0, 60), ArrowDown: () => this.pan(0, -60),
          "+": () => this.zoom(...middle, 0.8, 0.8), "=": () => this.zoom(...middle, 0.8, 0.8), "-": () => this.zoom(...middle, 1.25, 1.25), 0: () => this.reset(),
        }[event.key];
        if (act) { event.preventDefault(); act(); }
      });
    }
  }

  // ---- the page around it ----

  function legend(plan, plot) {
    const bar = element("div", { class: "bar", role: "img", "aria-label": text.planned });
    const buttons = element("div", { class: "legend" });
    const index = (name) => colours.findIndex(([known]) => known === name);
    const shade = (name) => (index(name) < 0 ? style("--faint") : colour(index(name)));
    for (const [name, bytes] of plan.categories) {
      bar.append(element("span", { style: `width:${(100 * bytes) / Math.max(plan.budget, plan.planned)}%;background:${shade(name)}`, title: `${category(name)} ${size(bytes)}` }));
      const button = element("button", { type: "button", "aria-pressed": "false", onclick: () => {
        const place = index(name);
        plot.only = plot.only === place || place < 0 ? null : place;
        for (const other of buttons.children) other.setAttribute("aria-pressed", String(other === button && plot.only !== null));
        plot.draw();
      } }, element("span", { class: "swatch", style: `background:${shade(name)}` }), category(name), element("span", { class: "faint" }, size(bytes)));
      buttons.append(button);
    }
    return [bar, buttons];
  }

  function facts(plan) {
    const fact = (label, value, small) => element("div", {}, element("dt", {}, label), element("dd", {}, value, small ? element("small", {}, " " + small) : ""));
    const classes = Object.entries(plan.recompute);
    return element("dl", { class: "facts" },
      fact(text.planned, size(plan.planned), `/ ${size(plan.budget)} (${((100 * plan.planned) / plan.budget).toFixed(1)} %)`),
      fact(text.arena, size(plan.arena), `+${((100 * (plan.arena - plan.lowerBound)) / plan.lowerBound).toFixed(2)} %`),
      fact(text.batch, `${plan.accumulation} × ${whole(plan.microBatchTokens)} tok`, `${milliseconds(plan.stepMs)}`),
      fact(text.speed, `${whole(plan.tokensPerS)} tok/s`),
      fact(text.recompute, classes.length ? classes.map(([name, n]) => `${name} ×${n}`).join(", ") : text.nothing));
  }

  function table(plot, rows) {
    const body = element("tbody");
    const filter = element("input", { type: "search", placeholder: text.search, "aria-label": text.search, oninput: () => fill() });
    let pairs = [];
    function fill() {
      const wanted = filter.value.toLowerCase(), peak = plot.timeline.peakStep;
      const found = plot.timeline.buffers.filter((b) => !wanted || b.name.toLowerCase().includes(wanted)).sort((a, b) => b.bytes - a.bytes).slice(0, ROW_LIMIT);
      pairs = found.map((b) => [b, element("tr", { onclick: () => { plot.focus(b); mark(b); plot.canvas.scrollIntoView({ block: "nearest", behavior: "smooth" }); } },
        element("td", { class: "name" }, element("span", { class: "swatch", style: `display:inline-block;margin-right:7px;background:${colour(b.category)}` }), b.name, b.recomputed ? element("span", { class: "faint" }, " ↻ " + text.recomputed) : ""),
        element("td", { class: "wide" }, category(colours[b.category][0])),
        element("td", { class: "number" }, size(b.bytes)),
        element("td", { class: "wide" }, b.detail),
        element("td", { class: "number wide" }, b.layer ? String(b.layer - 1) : ""),
        element("td", { class: "number" }, b.band ? text.wholeRun : `${b.first} – ${b.last}`),
        element("td", { class: "wide" }, b.first <= peak && peak <= b.last ? "●" : ""))]);
      body.replaceChildren(...pairs.map(([, row]) => row));
    }
    function mark(buffer) {
      for (const [b, row] of pairs) row.classList.toggle("chosen", b === buffer);
    }
    const head = [[text.buffer, "name"], [text.category, "wide"], [text.size, "number"], [text.content, "wide"], [text.layer, "number wide"], [text.steps, "number"], [text.atPeak, "wide"]];
    fill();
    rows.fill = fill; rows.mark = mark;
    return element("div", {},
      element("div", { class: "tablehead" }, element("h3", {}, text.largest), filter),
      element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...head.map(([label, kind]) => element("th", { class: kind }, label)))), body)));
  }

  function panel(plan) {
    const canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": `${text.title}: ${plan.name}` });
    const tip = element("div", { class: "tip" });
    const rows = {};
    const plot = new Plot(plan, canvas, tip, (buffer) => rows.mark(buffer));
    plot.rows = rows;
    const node = element("section", {},
      element("div", { class: "head" }, element("h2", {}, plan.name), element("span", { class: plan.fits ? "faint" : "refused" }, `${plan.device} · ${plan.fits ? text.fits : text.doesNotFit}`)),
      facts(plan), ...legend(plan, plot), element("div", { class: "plot" }, canvas, tip),
      element("div", { class: "below" }, element("p", { class: "faint" }, text.usage),
        element("div", {}, element("button", { type: "button", onclick: () => plot.toPeak() }, text.toPeak), element("button", { type: "button", onclick: () => plot.reset() }, text.reset))),
      table(plot, rows));
    return { plot, node };
  }

  function choice(label, options, act) {
    const group = element("div", { class: "choice", role: "group", "aria-label": label });
    for (const [key, shown] of options) {
      const button = element("button", { type: "button", "aria-pressed": String(group.children.length === 0), onclick: () => {
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
        act(key);
      } }, shown);
      group.append(button);
    }
    return group;
  }

  function comparison() {
    const names = [...new Set(plans.flatMap((plan) => plan.categories.map(([name]) => name)))];
    const bytes = (plan, name) => (plan.categories.find(([known]) => known === name) || [name, 0])[1];
    const signed = (value) => (value === 0 ? "" : (value > 0 ? "+" : "−") + size(Math.abs(value)));
    const row = (tag, label, of) => element("tr", {}, element(tag, {}, label), ...plans.map((plan) => element(tag, { class: "number" }, size(of(plan)))),
      plans.length === 2 ? element(tag, { class: "number" }, signed(of(plans[1]) - of(plans[0]))) : null);
    const difference = plans.length === 2 ? element("th", { class: "number" }, text.difference) : null;
    return element("section", { class: "compare" }, element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, element("th", {}, text.category), ...plans.map((plan) => element("th", { class: "number" }, plan.name)), difference)),
      element("tbody", {}, ...names.map((name) => row("td", category(name), (plan) => bytes(plan, name)))),
      element("tfoot", {}, row("td", text.total, (plan) => plan.planned)))));
  }

  for (const plan of plans) unpack(plan);
  const panels = plans.map(panel);
  const schedules = [...new Set(plans.flatMap((plan) => plan.timelines.map((t) => t.name)))].map((name) => [name, word(text.schedules, name)]);
  document.getElementById("page").append(
    element("header", {}, element("h1", {}, text.title), element("div", { class: "controls" },
      choice(text.schedule, schedules, (name) => { for (const { plot } of panels) { plot.show(name); plot.rows.fill(); } }),
      choice(text.axis, [["steps", text.axisSteps], ["time", text.axisTime]], (axis) => { for (const { plot } of panels) plot.setAxis(axis); }))),
    element("div", { class: plans.length > 1 ? "plans two" : "plans" }, ...panels.map(({ node }) => node)),
    ...(plans.length > 1 ? [comparison()] : []));
  globalThis.plots = panels.map(({ plot }) => plot);
})();
