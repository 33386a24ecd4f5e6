"use strict";
// Words of another language, by the English ones that stand here.
const WORDS = {{words}}, LANGUAGE = "{{language}}", OTHER = LANGUAGE === "zh" ? { code: "en", name: "English" } : { code: "zh", name: "中文" };
const say = (word) => WORDS[word] || word;
const said = (words) => Object.fromEntries(Object.entries(words).map(([key, word]) => [key, typeof word === "string" ? say(word) : said(word)]));
const TEXT = said({
  title: "Runs", help: "Choose one run, or two to compare them.", none: "There are no runs yet.", loss: "Loss", lr: "Learning rate",
  speed: "Tokens per second", memory: "Memory in use, dashed: planned", compared: "Before and after", run: "Run", state: "State", step: "Update", planned: "Planned memory",
  used: "Most memory used", meanSpeed: "Mean tokens/s", lastLoss: "Last loss", evalLoss: "Last evaluation", device: "Device", recompute: "Recompute", log: "Log",
  change: "Change", plan: "Plan", picture: "Memory picture", left: "Time left", samples: "Answers to held-out prompts", prompt: "Prompt", answer: "Answer",
  expected: "Expected", byCategory: "Planned memory by category", of: "of", budget: "budget", budgetRow: "Budget", phases: "Where an update's time goes", stop: "Stop",
  stopping: "Stopping…", resume: "Go on", noMicroBatch: "Micro-batch", tokens: "tokens", bytes: "Memory", tokensPerS: "Tokens/s", why: "Remark",
  free: "free", gone: "No answer: the dashboard has ended. Runs go on without it; `plimsoll dashboard` shows them again.", preparing: "being prepared",
  failedToStart: "could not run",
  phaseNames: { wait: "waiting for data", compute: "forward and backward", update: "optimizer", other: "the rest" },
  states: { running: "running", stopped: "stopped", finished: "finished", failed: "failed" },
});
const COLOURS = {{colours}};
const TOKEN = document.querySelector("meta[name=plimsoll-token]").content;
const GIB = 2 ** 30;
const dark = matchMedia("(prefers-color-scheme: dark)");
const at = (id) => document.getElementById(id);
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (category) => { const known = COLOURS.find(([name]) => name === category); return known ? known[dark.matches ? 2 : 1] : style("--other"); };
const made = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {}))
    key.startsWith("on") ? node.addEventListener(key.slice(2), value) : value === false || value === null || node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};
const short = (value) => (value === null || value === undefined ? "" : Math.abs(value) >= 1000 ? Math.round(value).toString() : Math.abs(value) >= 0.01 || value === 0 ? Number(value.toPrecision(4)).toString() : value.toExponential(1));
const size = (bytes, digits = 2) => { for (const [unit, name] of [[GIB, "GiB"], [2 ** 20, "MiB"], [1024, "KiB"]]) if (bytes >= unit) return (bytes / unit).toFixed(digits) + " " + name; return Math.round(bytes) + " B"; };
const duration = (s) => (s >= 3600 ? `${Math.floor(s / 3600)} h ${String(Math.floor(s / 60) % 60).padStart(2, "0")} min` : s >= 60 ? `${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, "0")} s` : `${Math.round(s)} s`);

// ---- asking ----

function notice(text) { at("notice").hidden = !text; at("notice").textContent = text || ""; }

async function ask(path, run) {
  let answer;
  try { answer = await fetch(`${path}?lang=${LANGUAGE}${run === undefined ? "" : "&run=" + encodeURIComponent(run)}`); }
  catch (error) { notice(TEXT.gone); throw error; }
  if (at("notice").textContent === TEXT.gone) notice("");
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer;
}

// Has something done. The token stands in a header, which no other page can put there.
async function have(path, wish, signal) {
  const headers = { "Content-Type": "application/json", "X-Plimsoll-Token": TOKEN };
  const answer = await fetch(`${path}?lang=${LANGUAGE}`, { method: "POST", headers, body: JSON.stringify(wish), signal });
  const body = await answer.json().catch(() => ({ message: `${path}: ${answer.status}` }));
  if (!answer.ok) throw new Error(body.message);
  return body;
}

// ---- the list of runs ----

const chosen = [], data = new Map(), streams = new Map();
let known = [], told = "";

async function list() {
  const [runs, launched] = await Promise.all([ask("/api/runs").then((a) => a.json()), ask("/api/launched").then((a) => a.json())]);
  known = runs;
  const failed = launched.filter((run) => run.code !== null && run.code !== 0 && run.code !== 130 && !runs.some((r) => r.name === run.name));
  const words = failed.map((run) => `${run.name} ${TEXT.failedToStart}: ${run.said}`).join("\n");
  if (words !== told) { notice(words); told = words; }
  at("runs").replaceChildren(...(runs.length ? runs.map(({ name, status }) => {
    const place = chosen.indexOf(name);
    const of = status.steps ? `${status.step} / ${status.steps}` : status.state === "running" && !status.step ? TEXT.preparing : `${status.step}`;
    return made("button", { class: "run", type: "button", "aria-pressed": String(place >= 0), onclick: () => toggle(name) },
      made("b", {}, made("span", { class: "dot", style: place < 0 ? "" : `background:var(--${"ab"[place]})` }), name),
      made("span", { class: "faint" }, `${TEXT.states[status.state]} · ${of}${status.loss === null ? "" : " · " + short(status.loss)}`));
  }) : [made("p", { class: "faint" }, TEXT.none)]));
  return runs;
}

async function toggle(name) {
  const place = chosen.indexOf(name);
  if (place >= 0) chosen.splice(place, 1);
  else { if (chosen.length === 2) chosen.shift(); chosen.push(name); }
  await showChosen();
}

async function only(name) {
  chosen.splice(0, chosen.length, name);
  await showChosen();
}

async function showChosen() {
  closeStart();
  for (const [run, source] of streams) if (!chosen.includes(run)) { source.close(); streams.delete(run); data.delete(run); }
  await Promise.all(chosen.map((name) => load(name).catch(() => {})));
  await list();
  show();
}

async function load(name) {
  if (data.has(name)) return;
  const json = (path) => ask(path, name).then((a) => a.json()).catch(() => null);
  const [metrics, plan, samples, log] = await Promise.all([json("/api/metrics"), json("/api/plan"), json("/api/samples"), ask("/api/log", name).then((a) => a.text()).catch(() => "")]);
  if (!metrics) return;
  data.set(name, { ...metrics, plan, samples, log, status: null });
  follow(name);
}

function follow(name) {
  const steps = data.get(name).points.step;
  const source = new EventSource(`/api/events?run=${encodeURIComponent(name)}&after=${steps[steps.length - 1] || 0}`);
  source.onmessage = async (event) => {
    const run = data.get(name), news = JSON.parse(event.data);
    if (!run) return source.close();
    // After a break the browser asks from the same place again.
    const end = run.points.step[run.points.step.length - 1] || 0, fresh = news.points.step.findIndex((step) => step > end);
    if (fresh >= 0) for (const key of Object.keys(run.points)) for (const value of news.points[key].slice(fresh)) run.points[key].push(value);
    const was = run.status && run.status.state;
    const changed = fresh >= 0 || JSON.stringify(run.status) !== JSON.stringify(news.status);
    run.evals = news.evals; run.status = news.status;
    const ended = news.status && news.status.state !== "running";
    // What is written at the beginning and at the end of a run.
    if (!run.plan || (ended && was === "running")) {
      const json = (path) => ask(path, name).then((a) => a.json()).catch(() => null);
      [run.plan, run.samples] = await Promise.all([json("/api/plan"), json("/api/samples")]);
      if (run.plan) shownFor = "";
    }
    if (changed && fresh >= 0 || ended) run.log = await ask("/api/log", name).then((a) => a.text()).catch(() => run.log);
    if (ended) { source.close(); streams.delete(name); list(); }
    if (changed && !starting) show();
  };
  streams.set(name, source);
}

// ---- what is shown of the chosen ----

let shownFor = "", drawings = [], starting = false;

function show() {
  if (starting) return;
  if (chosen.length === 0) { at("shown").replaceChildren(); shownFor = ""; return; }
  // One that was chosen a moment ago may still be on its way.
  if (!chosen.every((name) => data.has(name))) return;
  const key = chosen.join("\n");
  if (key !== shownFor) build(key);
  for (const draw of drawings) draw();
}

function build(key) {
  shownFor = key;
  drawings = [];
  const live = (node, draw) => { drawings.push(() => node.replaceChildren(...draw())); return node; };
  const curve = (title, of, more) => {
    const canvas = made("canvas", { role: "img", "aria-label": title });
    drawings.push(() => paint(canvas, of, more || {}));
    return made("section", {}, made("h2", {}, title), canvas);
  };
  const several = chosen.length > 1, title = (words, name) => (several ? `${words} · ${name}` : words);
  const each = (make) => chosen.map((name) => make(name, data.get(name))).filter(Boolean);
  at("shown").replaceChildren(
    several ? made("section", {}, made("h2", {}, TEXT.compared), live(made("div", { class: "scroll" }), () => [comparison()])) : live(made("section", { id: "summary" }), () => summary(chosen[0])),
    made("div", { class: "curves" }, curve(TEXT.loss, (p) => p.loss, { evals: true }), curve(TEXT.speed, (p) => p.tokensPerS), curve(TEXT.memory, (p) => p.used, { words: (b) => size(b, 1), level: (run) => (run.plan ? memory(run.plan).planned_bytes : null) }), curve(TEXT.lr, (p) => p.lr)),
    ...each((name) => live(made("section", {}), () => [made("h2", {}, title(TEXT.phases, name)), ...phases(data.get(name).points)])),
    ...each((name, run) => run.plan && made("section", {}, made("h2", {}, title(TEXT.byCategory, name)), ...categories(run.plan))),
    ...each((name, run) => run.plan && made("section", {}, made("h2", {}, title(TEXT.plan, name)), planTable(run.plan))),
    ...each((name, run) => run.plan && made("section", {}, made("details", { open: innerWidth > 800 ? "" : false },
      made("summary", {}, title(TEXT.picture, name)), made("iframe", { sandbox: "allow-scripts", src: "/plan?run=" + encodeURIComponent(name), title: `${TEXT.picture} ${name}`, loading: "lazy" })))),
    ...each((name) => live(made("section", {}), () => samples(title(TEXT.samples, name), data.get(name).samples))),
    ...each((name) => made("section", {}, made("h2", {}, title(TEXT.log, name)), live(made("pre", { tabindex: "0" }), () => [data.get(name).log]))));
}

const last = (values) => values[values.length - 1];
const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);
const mean = (values) => { const known = values.filter((v) => v !== null); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };
const memory = (plan) => (plan.gpu.planned_bytes > 0 ? plan.gpu : plan.host);

function facts(pairs) {
  return made("dl", { class: "facts" }, ...pairs.filter(([, value]) => value).map(([name, value]) => made("div", {}, made("dt", {}, name), made("dd", {}, value))));
}

function summary(name) {
  const run = data.get(name), status = run.status || (known.find((r) => r.name === name) || {}).status || {};
  const act = (path, button) => async (event) => {
    event.target.disabled = true;
    if (button) event.target.textContent = button;
    try { await have(path, { run: name }); notice(""); } catch (error) { notice(error.message); }
    // A run that goes on is looked at from its new beginning.
    if (path === "/api/resume") { data.delete(name); streams.get(name)?.close(); streams.delete(name); shownFor = ""; setTimeout(() => showChosen(), 1500); }
  };
  const stopping = at("stop") && at("stop").disabled;
  const button = status.state === "running" ? made("button", { id: "stop", type: "button", onclick: act("/api/stop", TEXT.stopping), disabled: stopping ? "" : false }, stopping ? TEXT.stopping : TEXT.stop)
    : status.state === "stopped" || status.state === "failed" ? made("button", { id: "resume", type: "button", class: "strong", onclick: act("/api/resume") }, TEXT.resume) : null;
  const state = made("span", { id: "state", class: status.state === "failed" ? "bad" : status.state === "finished" || status.state === "running" ? "good" : "faint" }, TEXT.states[status.state] || "");
  const share = status.steps ? (100 * status.step) / status.steps : 0;
  const p = run.points, used = most(p.used);
  return [
    made("div", { class: "head" }, made("h2", {}, name), made("div", {}, state, button)),
    made("div", { class: "meter", role: "progressbar", "aria-valuenow": String(Math.round(share)) }, made("span", { style: `width:${share}%` })),
    facts([
      [TEXT.step, status.steps ? `${status.step} / ${status.steps}` : String(status.step ?? 0)],
      [TEXT.loss, short(status.loss)],
      [TEXT.evalLoss, run.evals.length ? short(last(run.evals)[1]) : ""],
      [TEXT.tokensPerS, short(last(p.tokensPerS))],
      [TEXT.bytes, run.plan ? `${used ? size(used) + " " + TEXT.of + " " : ""}${size(memory(run.plan).planned_bytes)}` : used ? size(used) : ""],
      [TEXT.left, status.state === "running" && status.left_s !== null && status.left_s !== undefined ? duration(status.left_s) : ""],
      [TEXT.device, run.plan ? run.plan.device : ""],
    ]),
  ];
}

// What is a share of the whole, as a bar with its legend.
function stacked(parts, whole, words) {
  const shown = parts.filter(([, value]) => value > 0);
  return [
    made("div", { class: "stack", role: "img", "aria-label": shown.map(([name, value]) => `${name} ${words(value)}`).join(", ") },
      ...shown.map(([name, value, paint]) => made("span", { title: `${name} ${words(value)}`, style: `width:${(100 * value) / whole}%;background:${paint}` }))),
    made("ul", { class: "legend" }, ...shown.map(([name, value, paint]) => made("li", {}, made("span", { class: "swatch", style: `background:${paint}` }), `${name} `, made("span", { class: "faint" }, words(value))))),
  ];
}

function categories(plan) {
  const { categories, planned_bytes, budget_bytes } = memory(plan);
  const parts = Object.entries(categories).sort((a, b) => b[1] - a[1]).map(([name, bytes]) => [say(name), bytes, colour(name)]);
  const left = Math.max(budget_bytes - planned_bytes, 0);
  return [...stacked([...parts, [TEXT.free, left, "transparent"]], Math.max(budget_bytes, planned_bytes), (bytes) => size(bytes)),
    made("p", { class: "faint", style: "margin:8px 0 0" }, `${TEXT.planned}: ${size(planned_bytes)} ${TEXT.of} ${size(budget_bytes)} ${TEXT.budget}`)];
}

function phases(points) {
  const recent = (values) => mean(values.slice(-50)) || 0;
  const [step, wait, compute, update] = [points.stepMs, points.waitMs, points.computeMs, points.updateMs].map(recent);
  if (!step) return [];
  const rest = Math.max(step - wait - compute - update, 0), names = TEXT.phaseNames;
  const parts = [[names.compute, compute, colour("activations")], [names.update, update, colour("optimizer")], [names.wait, wait, colour("loss")], [names.other, rest, colour("workspace")]];
  return stacked(parts, step, (ms) => `${ms >= 100 ? Math.round(ms) : ms.toFixed(1)} ms, ${Math.round((100 * ms) / step)} %`);
}

function planTable(plan) {
  const onGpu = plan.alternatives.some((a) => a.gpu_bytes > 0);
  const head = ["", TEXT.noMicroBatch, TEXT.bytes, TEXT.tokensPerS].map((name) => made("th", {}, name));
  return made("div", { class: "scroll" }, made("table", { class: "plans" }, made("tr", {}, ...head, made("th", { class: "text" }, TEXT.why)),
    ...plan.alternatives.map((a) => made("tr", { class: a.chosen ? "chosen" : a.fits ? "" : "refused" },
      made("td", {}, `${a.chosen ? "▸ " : ""}${a.name}`), made("td", {}, `${a.micro_batch_tokens}`), made("td", {}, size(onGpu ? a.gpu_bytes : a.host_bytes)),
      made("td", {}, short(a.tokens_per_s)), made("td", { class: "text" }, a.why_not || "")))));
}

function samples(title, list) {
  if (!list || !list.length) return [made("h2", {}, title), made("p", { class: "faint", style: "margin:0" }, "–")];
  return [made("h2", {}, title), made("div", { class: "scroll" }, made("table", {},
    made("tr", {}, ...[TEXT.prompt, TEXT.answer, TEXT.expected].map((name) => made("th", { class: "text" }, name))),
    ...list.map((s) => made("tr", {}, made("td", { class: "text" }, s.prompt), made("td", { class: "text " + (s.answer === s.expected ? "good" : "") }, s.answer), made("td", { class: "text" }, s.expected)))))];
}

// The second against the first: what was, what is, and what changed.
function comparison() {
  const of = (run, key) => (run.plan ? memory(run.plan)[key] : null);
  const ratio = (a, b) => (a > 0 && b > 0 ? `× ${(b / a).toFixed(3)}` : ""), difference = (a, b) => (a === null || b === null || a === undefined || b === undefined ? "" : `${b >= a ? "+" : "−"}${short(Math.abs(b - a))}`);
  const bytes = (a, b) => (a && b ? `${b >= a ? "+" : "−"}${size(Math.abs(b - a))}` : "");
  const rows = [
    [TEXT.state, (run) => (run.status ? TEXT.states[run.status.state] : ""), String],
    [TEXT.step, (run) => last(run.points.step) ?? 0, String],
    [TEXT.lastLoss, (run) => last(run.points.loss), short, difference],
    [TEXT.evalLoss, (run) => last(run.evals)?.[1], short, difference],
    [TEXT.meanSpeed, (run) => mean(run.points.tokensPerS), short, ratio],
    [TEXT.used, (run) => most(run.points.used), (v) => (v ? size(v) : ""), bytes],
    [TEXT.planned, (run) => of(run, "planned_bytes"), (v) => (v ? size(v) : ""), bytes],
    [TEXT.budgetRow, (run) => of(run, "budget_bytes"), (v) => (v ? size(v) : ""), bytes],
    [TEXT.recompute, (run) => (run.plan ? Object.entries(run.plan.recompute).map(([name, n]) => `${name} ×${n}`).join(", ") || "–" : ""), String],
    [TEXT.device, (run) => (run.plan ? run.plan.device : ""), String],
  ];
  return made("table", { id: "comparison" },
    made("tr", {}, made("th", {}, TEXT.run), ...chosen.map((name, place) => made("th", { style: `color:var(--${"ab"[place]})` }, name)), made("th", {}, TEXT.change)),
    ...rows.map(([label, of, words, change]) => {
      const values = chosen.map((name) => of(data.get(name)));
      return made("tr", {}, made("td", {}, label), ...values.map((v) => made("td", {}, v === null || v === undefined ? "" : words(v))), made("td", {}, change ? change(...values) : ""));
    }));
}

// `more` may have evaluations beside the curve, a level to hold it against, and how its values are written.
function paint(canvas, of, { evals, level, words = short }) {
  const c = canvas.getContext("2d"), ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * ratio; canvas.height = height * ratio; c.scale(ratio, ratio);
  const runs = chosen.map((name) => data.get(name));
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const run of runs) of(run.points).forEach((y, i) => {
    if (y === null) return;
    const x = run.points.step[i];
    x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y);
  });
  if (x0 > x1) return;
  const levels = runs.map((run) => (level ? level(run) : null));
  for (const y of levels) if (y !== null) { y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
  const margin = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 1;
  // Nothing here is below zero that was not so itself.
  y0 = y0 >= 0 ? Math.max(y0 - margin, 0) : y0 - margin; y1 += margin; if (x1 === x0) x1 = x0 + 1;
  const left = level ? 74 : 54, bottom = height - 20, x = (s) => left + ((s - x0) / (x1 - x0)) * (width - left - 8), y = (v) => bottom - ((v - y0) / (y1 - y0)) * (bottom - 6);
  c.font = "11px system-ui, sans-serif"; c.fillStyle = style("--faint"); c.strokeStyle = style("--line"); c.textBaseline = "middle";
  for (let i = 0; i <= 4; i++) {
    const v = y0 + ((y1 - y0) * i) / 4, py = Math.round(y(v)) + 0.5;
    c.beginPath(); c.moveTo(left, py); c.lineTo(width - 8, py); c.stroke();
    c.textAlign = "right"; c.fillText(words(v), left - 6, py);
  }
  c.textAlign = "left"; c.fillText(String(x0), left, height - 7); c.textAlign = "right"; c.fillText(String(x1), width - 8, height - 7);
  runs.forEach((run, place) => {
    c.strokeStyle = c.fillStyle = style("--" + "ab"[place]); c.lineWidth = 1.6; c.lineJoin = "round";
    c.beginPath();
    let pen = false;
    of(run.points).forEach((v, i) => {
      if (v === null) { pen = false; return; }
      pen ? c.lineTo(x(run.points.step[i]), y(v)) : c.moveTo(x(run.points.step[i]), y(v));
      pen = true;
    });
    c.stroke();
    if (levels[place] !== null) { c.setLineDash([6, 4]); c.lineWidth = 1; c.beginPath(); c.moveTo(left, y(levels[place])); c.lineTo(width - 8, y(levels[place])); c.stroke(); c.setLineDash([]); }
    if (evals) for (const [step, loss] of run.evals) if (loss !== null && loss >= y0 && loss <= y1 && step >= x0) { c.beginPath(); c.arc(x(step), y(loss), 3.5, 0, 7); c.fill(); }
  });
}
