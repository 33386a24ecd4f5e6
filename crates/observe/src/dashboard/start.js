// ---- starting a run ----

const START = said({
  title: "New run", model: "Model or run file", data: "Training data", tokenizer: "Tokenizer", task: "Task", method: "Method", gpu: "GPU memory", host: "Host memory",
  goal: "Goal", sequences: "Sequences per update", length: "Longest sequence, tokens", steps: "Updates", lr: "Learning rate", name: "Name", device: "Device", start: "Start",
  own: "as the run has it", auto: "all that is free", automatic: "as named by the model", anyDevice: "the first GPU, else the CPU", planning: "Planning…", fits: "It fits", fitsNot: "It does not fit",
  update: "An update", speed: "Speed", bound: "Bound by", microBatch: "Micro-batches", more: "With more memory", shell: "The same in a shell", faster: "× faster",
  kinds: { quickstart: "Built in", file: "Run files", folder: "Model folders", preset: "Shapes, from random weights" }, tokensPerS: "tokens/s", each: "of", tokens: "tokens", quickstart: "quickstart: a small model on a built-in dataset",
});
// The slider is logarithmic: what counts is by how much memory grows.
const STOPS = 120, LEAST_MIB = 16;
let choices, draftTimer, draftAsked = 0, draftUnderWay = null;

function closeStart() {
  starting = false;
  at("new").setAttribute("aria-pressed", "false");
  if (at("start")) { at("shown").replaceChildren(); shownFor = ""; }
}

async function openStart() {
  for (const source of streams.values()) source.close();
  streams.clear(); data.clear(); chosen.length = 0;
  starting = true; shownFor = "";
  at("new").setAttribute("aria-pressed", "true");
  choices = await ask("/api/choices").then((a) => a.json());
  await list();
  const option = (value, words) => made("option", { value }, words);
  const field = (name, control) => made("label", {}, made("span", {}, name), control);
  const select = (id, options) => made("select", { id, onchange: change }, ...options);
  const optional = (id, words, values) => select(id, [option("", words), ...values.map((value) => option(value, value))]);
  const number = (id, step) => made("input", { id, type: "number", min: step === "any" ? "0" : "1", step, placeholder: START.own, oninput: change, inputmode: "decimal" });
  const kinds = Object.keys(START.kinds).map((kind) => [kind, choices.models.filter((model) => model.kind === kind)]).filter(([, models]) => models.length);
  const models = kinds.map(([kind, models]) => made("optgroup", { label: START.kinds[kind] }, ...models.map((model) => option(model.word, kind === "quickstart" ? START.quickstart : model.name))));
  const slider = (id, name, bytes) => made("label", {}, made("span", {}, name, made("b", { id: id + "-shown" }, START.auto)),
    made("input", { id, type: "range", min: "0", max: String(STOPS), value: String(STOPS), "data-bytes": String(bytes), oninput: change }));
  const form = made("form", { onsubmit: begin },
    field(START.model, select("model", models)),
    field(START.data, optional("data", START.own, choices.data)),
    choices.gpus.length ? slider("gpu", START.gpu, choices.gpus[0].bytes) : null,
    slider("host", START.host, choices.host_bytes),
    made("div", { class: "pair" },
      field(START.task, optional("task", START.own, choices.tasks)), field(START.method, optional("method", START.own, ["lora", "full"])),
      field(START.goal, optional("goal", START.own, ["fastest", "lowest"])), field(START.device, optional("device", START.anyDevice, ["cpu"])),
      field(START.sequences, number("sequences", "1")), field(START.length, number("max_length", "1")),
      field(START.steps, number("steps", "1")), field(START.lr, number("lr", "any"))),
    field(START.tokenizer, optional("tokenizer", START.automatic, choices.tokenizers)),
    field(START.name, made("input", { id: "name", maxlength: "64", pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*", placeholder: "…", autocomplete: "off" })),
    made("button", { id: "go", class: "strong", type: "submit", disabled: "" }, START.start));
  at("shown").replaceChildren(made("div", { id: "start", class: "start" }, made("section", {}, made("h2", {}, START.title), form), made("section", { id: "draft", "aria-live": "polite" }, made("p", { class: "faint" }, START.planning))));
  change();
}

function mib(slider) {
  if (!slider || slider.valueAsNumber >= STOPS) return null;
  const top = Number(slider.dataset.bytes) / 2 ** 20, exact = LEAST_MIB * (top / LEAST_MIB) ** (slider.valueAsNumber / STOPS);
  const grain = exact >= 8192 ? 256 : exact >= 1024 ? 64 : 8;
  return Math.round(exact / grain) * grain;
}

function draft() {
  const wish = { model: at("model").value };
  for (const id of ["data", "task", "method", "goal", "device", "tokenizer"]) if (at(id).value) wish[id] = at(id).value;
  for (const id of ["sequences", "max_length", "steps"]) if (at(id).value) wish[id] = Math.round(Number(at(id).value));
  if (at("lr").value) wish.lr = Number(at("lr").value);
  for (const id of ["gpu", "host"]) if (mib(at(id)) !== null) wish[id + "_mib"] = mib(at(id));
  return wish;
}

// Plans a moment after the last change. What was asked for before is no longer waited for.
function change() {
  for (const id of ["gpu", "host"]) if (at(id)) at(id + "-shown").textContent = mib(at(id)) === null ? START.auto : size(mib(at(id)) * 2 ** 20);
  at("draft").classList.add("working");
  clearTimeout(draftTimer);
  draftTimer = setTimeout(plan, 200);
}

async function plan() {
  if (draftUnderWay) { draftAsked++; return; }
  const asked = draftAsked;
  let shown;
  draftUnderWay = have("/api/draft", draft());
  try { shown = drafted(await draftUnderWay); at("go") && (at("go").disabled = !shown.fits); }
  catch (error) { shown = { nodes: [made("pre", { class: "bad" }, error.message)] }; if (at("go")) at("go").disabled = true; }
  draftUnderWay = null;
  if (!at("draft")) return;
  if (draftAsked !== asked) return plan();
  at("draft").replaceChildren(...shown.nodes);
  at("draft").classList.remove("working");
}

function drafted({ fits, report, said, command }) {
  const nodes = [made("div", { class: "head" }, made("h2", { id: "verdict", class: fits ? "good" : "bad" }, fits ? START.fits : START.fitsNot), made("span", { class: "faint" }, report ? report.device || "" : ""))];
  if (fits) {
    nodes.push(facts([
      [TEXT.bytes, `${size(memory(report).planned_bytes)} ${TEXT.of} ${size(memory(report).budget_bytes)}`],
      [START.speed, `${short(report.predicted.tokens_per_s)} ${START.tokensPerS}`],
      [START.update, `${short(report.predicted.step_ms)} ms`],
      [START.microBatch, `${report.accumulation} × ${report.micro_batch_tokens} ${START.tokens}`],
      [START.bound, report.predicted.bound_by],
      [TEXT.recompute, Object.entries(report.recompute).map(([name, n]) => `${name} ×${n}`).join(", ") || "–"],
    ]), made("p"), ...categories(report), made("p"), planTable(report));
    const now = memory(report).budget_bytes, onGpu = report.gpu.planned_bytes > 0;
    const gains = (report.next_gib || []).map((at) => `+${size((onGpu ? at.gpu_bytes : at.host_bytes) - now)}: ${(at.tokens_per_s / report.predicted.tokens_per_s).toFixed(2)} ${START.faster}`);
    if (gains.length) nodes.push(made("p", { class: "faint" }, `${START.more}: ${gains.join(", ")}`));
  } else if (report && report.alternatives && report.alternatives.length) nodes.push(planTable(report));
  if (said) nodes.push(made("pre", { class: fits ? "faint" : "bad", style: "margin:10px 0" }, said));
  nodes.push(made("p", { class: "faint", style: "margin:12px 0 4px" }, START.shell), made("code", { id: "command" }, command));
  return { fits, nodes };
}

async function begin(event) {
  event.preventDefault();
  at("go").disabled = true;
  try {
    const { run } = await have("/api/start", { ...draft(), name: at("name").value });
    notice("");
    await appears(run);
  } catch (error) { notice(error.message); if (at("go")) at("go").disabled = false; }
}

// A run is there once it has taken its folder; one that cannot run never does.
async function appears(run) {
  for (;;) {
    const runs = await list();
    if (runs.some((r) => r.name === run)) return only(run);
    const launched = await ask("/api/launched").then((a) => a.json());
    if (launched.some((r) => r.name === run && r.code !== null)) { if (at("go")) at("go").disabled = false; return list(); }
    await new Promise((done) => setTimeout(done, 300));
  }
}
