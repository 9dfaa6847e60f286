// The page: it asks questions and shows answers. What anything means is decided in Python, by `batchbridge.playground`.
const $ = (name) => document.getElementById(name);
const transport = document.documentElement.dataset.transport;
const state = { text: "", framework: "", version: "", devices: null, set: {}, view: "meaning", to: "", other: "", number: 128, group: 16 };
const KEPT = Object.keys(state);
const still = matchMedia("(prefers-reduced-motion: reduce)");

// ---- transports: one question and one answer, as JSON

function inWorker() {
  const worker = new Worker("worker.js", { type: "module" });
  const waiting = new Map();
  let last = 0;
  worker.onmessage = ({ data }) => {
    const { done, failed } = waiting.get(data.number);
    waiting.delete(data.number);
    if (data.problem === undefined) done(JSON.parse(data.answer)); else failed(new Error(data.problem));
  };
  worker.onerror = (event) => { for (const { failed } of waiting.values()) failed(new Error(event.message || "Python does not start in this browser")); };
  return (question) => new Promise((done, failed) => {
    waiting.set(++last, { done, failed });
    worker.postMessage({ number: last, question: JSON.stringify(question) });
  });
}

function onServer() {
  return async (question) => {
    const found = await fetch("answer", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question) });
    if (!found.ok) throw new Error(`the local server says ${found.status}; is it still running?`);
    return found.json();
  };
}

const ask = transport === "server" ? onServer() : inWorker();

// Of questions of one kind only the latest counts: while one is answered, the next ones replace each other.
const underway = new Map();
let answered = false;
async function latest(kind, make, show) {
  const slot = underway.get(kind) ?? { busy: false, next: null };
  underway.set(kind, slot);
  if (slot.busy) { slot.next = [make, show]; return; }
  slot.busy = true;
  try {
    const asked = performance.now(), said = make();  // made now: what was answered meanwhile is in it
    const answer = await ask(said);
    answered = true;
    $("loading")?.remove();
    performance.measure(`answer ${kind}`, { start: asked, end: performance.now() });
    if (slot.next === null || kind === "meaning") show(answer, said, slot.next !== null);
  } catch (error) {
    refuse(error.message);
  } finally {
    slot.busy = false;
    if (slot.next !== null) { const [again, shown] = slot.next; slot.next = null; latest(kind, again, shown); }
  }
}

// ---- links: the state, packed, behind the #

const SAFE = [["+", "-"], ["/", "_"], ["=", ""]];
async function packed(value) {
  const stream = new Blob([JSON.stringify(value)]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return SAFE.reduce((made, [from, to]) => made.replaceAll(from, to), btoa(text));
}
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}
let linking;
function link() {
  clearTimeout(linking);
  linking = setTimeout(async () => {
    const said = Object.fromEntries(KEPT.filter((key) => state[key] !== "" && state[key] !== null).map((key) => [key, state[key]]));
    history.replaceState(null, "", `#s=${await packed(said)}`);
  }, 250);
}
async function fromLink() {
  const found = /^#s=([\w-]+)$/.exec(location.hash);
  if (!found) return false;
  try {
    const said = await unpacked(found[1]);
    for (const key of KEPT) if (key in said) state[key] = said[key];
    return typeof state.text === "string";
  } catch { return false; }
}

// ---- the view

const width = () => Math.round($("answer").clientWidth);
const question = (want, more = {}) => ({ want, ...state, width: width(), ...more });

// A picture moves into its next form: shapes of one row keep their place in the row.
function morph(old, next) {
  for (const name of ["viewBox", "width", "height"]) old.setAttribute(name, next.getAttribute(name));
  const rows = new Map();
  const key = (one, counts) => {
    const row = `${one.tagName} ${one.getAttribute("y") ?? ""} ${one.getAttribute("class") === "ground"}`;
    counts.set(row, (counts.get(row) ?? 0) + 1);
    return `${row} ${counts.get(row)}`;
  };
  const before = new Map();
  for (const one of old.children) before.set(key(one, rows), one);
  const counts = new Map();
  const made = [];
  for (const one of [...next.children]) {
    const known = before.get(key(one, counts));
    if (!known) { made.push(one); continue; }
    for (const { name } of [...known.attributes]) if (!one.hasAttribute(name)) known.removeAttribute(name);
    for (const { name, value } of one.attributes) if (known.getAttribute(name) !== value) known.setAttribute(name, value);
    if (known.innerHTML !== one.innerHTML) known.innerHTML = one.innerHTML;
    made.push(known);
  }
  old.replaceChildren(...made);
}

function put(html) {
  const box = $("answer");
  const open = new Map([...box.querySelectorAll("details")].map((one) => [one.querySelector("summary").textContent.replace(/\d+/g, ""), one.open]));
  const focused = box.contains(document.activeElement) ? document.activeElement.dataset.changes : undefined;
  const next = document.createElement("div");
  next.innerHTML = html;
  for (const kind of ["lanes-figure", "torn-figure"]) {
    const [was, is] = [box, next].map((one) => one.querySelector(`.${kind} svg`));
    if (was && is && !still.matches) { morph(was, is); is.replaceWith(was); }
  }
  for (const one of next.querySelectorAll("details")) {
    const before = open.get(one.querySelector("summary").textContent.replace(/\d+/g, ""));
    if (before !== undefined) one.open = before;
  }
  box.replaceChildren(...next.childNodes);
  if (focused) [...box.querySelectorAll("[data-changes]")].find((one) => one.dataset.changes === focused)?.focus();
  box.removeAttribute("aria-busy");
}

let saying;
function say(text) {
  clearTimeout(saying);
  saying = setTimeout(() => { $("said").textContent = text; }, 500);
}

function refuse(text) {
  const one = document.createElement("p");
  one.className = "lead problem";
  one.textContent = text;
  $("answer").replaceChildren(one);
  say(text);
}

function options(select, values, chosen, first) {
  const listed = first === undefined ? values : ["", ...values];
  if ([...select.options].map((one) => one.value).join() !== listed.join())
    select.replaceChildren(...listed.map((value) => new Option(value === "" ? first : value, value)));
  select.value = chosen;
}

// ---- sliders: the settings that decide the sizes, in the user's keys

function knob({ key, label, value, most }) {
  const id = `knob-${key}`;
  let box = document.getElementById(id);
  if (!box) {
    box = document.createElement("div");
    box.className = "knob";
    box.id = id;
    box.innerHTML = '<label><span class="name"></span><span class="soft"></span></label><input type="number" min="1" step="1" inputmode="numeric"><input type="range" min="1" step="1">';
    const [number, range] = box.querySelectorAll("input");
    box.querySelector("label").htmlFor = range.id = `${id}-range`;
    box.querySelector(".name").textContent = key;
    number.setAttribute("aria-label", `${key}, as a number`);
    range.oninput = () => { number.value = range.value; change({ [key]: Number(range.value) }); };
    number.oninput = () => { if (number.validity.valid && number.value) { range.value = number.value; change({ [key]: Number(number.value) }); } };
  }
  const [number, range] = box.querySelectorAll("input");
  box.querySelector(".soft").textContent = label;
  range.max = Math.max(most, Number(range.dataset.most ?? 0));
  range.dataset.most = range.max;
  if (document.activeElement !== range) range.value = value;
  if (document.activeElement !== number) number.value = value;
  return box;
}

function showKnobs(knobs) {
  if (!knobs.length) return;
  const box = $("knobs"), wanted = knobs.map(knob);
  const there = [...box.children];
  if (there.length === wanted.length && there.every((one, place) => one === wanted[place])) return;
  const focused = document.activeElement;
  box.replaceChildren(...wanted);
  if (box.contains(focused)) focused.focus();
}

function showDevices(devices) {
  const range = $("devices"), number = $("devices-number");
  if (devices !== null && document.activeElement !== range) range.value = devices;
  if (devices !== null && document.activeElement !== number) number.value = devices;
  for (const one of $("strip").children) one.classList.toggle("here", Number(one.textContent) === devices);
}

let pending = {};
function change(changes) {
  pending = { ...pending, ...changes };
  judge();
}

// ---- questions

function judge() {
  $("answer").setAttribute("aria-busy", "true");
  latest("meaning", () => question("meaning", Object.keys(pending).length ? { changes: { ...pending } } : {}), showMeaning);
}

function showMeaning(answer, asked, stale) {
  if (answer.problem) { pending = {}; refuse(answer.problem); return; }
  const changes = asked.changes ?? {};
  for (const [key, value] of Object.entries(changes)) if (pending[key] === value) delete pending[key];
  if (state.text === asked.text) {  // else the person has typed meanwhile
    if (Object.keys(changes).length) {
      state.text = answer.text;
      if ($("text").value !== answer.text) $("text").value = answer.text;
      state.set = answer.set;
    }
    if (state.devices === asked.devices) state.devices = answer.devices;
  }
  options($("framework"), answer.frameworks, state.framework, answer.framework === "unknown" ? "detected" : answer.framework);
  $("framework").options[0].textContent = answer.framework === "unknown" ? "detected" : answer.framework;
  options($("version"), [...answer.versions].reverse(), answer.versions.includes(state.version) ? state.version : "", `${answer.version ?? "newest"}`);
  $("version").options[0].textContent = `${answer.version ?? "newest"}`;
  const targets = answer.frameworks.filter((one) => one !== answer.framework && one !== "open_r1");
  if (!targets.includes(state.to)) state.to = targets.includes("verl") ? "verl" : targets[0] ?? "";
  options($("to"), targets, state.to);
  $("kind").textContent = answer.text.trim() ? `(read as .${answer.kind})` : "";
  $("told").textContent = answer.told;
  showSet(answer.set);
  showKnobs(answer.knobs);
  showDevices(state.devices);
  document.documentElement.dataset.verdict = answer.verdict;
  const badge = document.createElement("strong"), sizes = document.createElement("span");
  badge.className = answer.verdict;
  badge.textContent = answer.verdict;
  sizes.textContent = answer.brief;
  $("brief").replaceChildren(badge, sizes);
  if (state.view === "meaning") { put(answer.html); say(answer.said); }
  link();
  if (!stale) { strip(); if (state.view !== "meaning") other(); }
}

function showSet(set) {
  const rows = Object.entries(set).map(([key, value]) => {
    const row = document.createElement("li"), button = document.createElement("button");
    row.textContent = `${key} = ${value} `;
    button.type = "button";
    button.textContent = "\u00d7";
    button.setAttribute("aria-label", `Take ${key} back`);
    button.onclick = () => { delete state.set[key]; judge(); };
    row.append(button);
    return row;
  });
  $("beside").replaceChildren(...rows);
  $("beside").hidden = rows.length === 0;
}

let stripOf = "", resting;
function strip() {  // 64 verdicts: when the hand rests
  clearTimeout(resting);
  resting = setTimeout(stripNow, 200);
}

function stripNow() {
  const key = (said) => JSON.stringify([said.text, said.framework, said.version, said.set]);
  if (key(question("strip")) === stripOf) return;
  $("strip").classList.add("old");
  latest("strip", () => question("strip"), (answer, asked) => { stripOf = key(asked); showStrip(answer); });
}

function showStrip(answer) {
  if (answer.problem) return;
  const valid = new Set(answer.valid), open = new Set(answer.undecided);
  const cells = [];
  for (let devices = 1; devices <= answer.most; devices++) {
    const cell = $("strip").children[devices - 1] ?? document.createElement("span");
    cell.textContent = devices;
    cell.className = valid.has(devices) ? "yes" : open.has(devices) ? "maybe" : "no";
    cell.title = `${devices} devices: ${valid.has(devices) ? "valid" : open.has(devices) ? "undecided" : "invalid"}`;
    cells.push(cell);
  }
  $("strip").replaceChildren(...cells);
  $("strip").classList.remove("old");
  const every = answer.valid.length === answer.most;
  const none = answer.valid.length === 0;
  $("strip-said").textContent = every ? `Valid on every number of devices from 1 to ${answer.most}.`
    : none ? `Valid on no number of devices from 1 to ${answer.most}.`
    : `Valid on ${answer.valid.join(", ")} of 1 to ${answer.most} devices.`;
  showDevices(state.devices);
}

function other() {
  latest("view", () => question(state.view), (answer) => {
    if (answer.problem) refuse(answer.problem);
    else { put(answer.html); if (answer.verdict) say(answer.verdict); }
  });
}

function view(name) {
  state.view = name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.dataset.view === name;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  for (const part of ["same", "convert", "diff"]) $(`of-${part}`).hidden = part !== name;
  $("answer").setAttribute("aria-labelledby", `tab-${name}`);
  if (name === "meaning") judge(); else { other(); link(); }
}

// ---- what a person does

let typing;
const soon = (act) => { clearTimeout(typing); typing = setTimeout(act, 120); };
$("text").oninput = () => {
  Object.assign(state, { text: $("text").value, set: {}, version: "" });
  $("example").value = "";
  soon(judge);
};
$("other").oninput = () => { state.other = $("other").value; soon(other); };
$("devices").oninput = () => { state.devices = Number($("devices").value); showDevices(state.devices); judge(); };
$("devices-number").oninput = () => {
  const number = $("devices-number");
  if (number.validity.valid && number.value) { state.devices = Number(number.value); showDevices(state.devices); judge(); }
};
$("framework").onchange = () => { Object.assign(state, { framework: $("framework").value, version: "" }); judge(); };
$("version").onchange = () => { state.version = $("version").value; judge(); };
for (const name of ["number", "group"]) $(name).oninput = () => { if ($(name).validity.valid && $(name).value) { state[name] = Number($(name).value); other(); link(); } };
$("to").onchange = () => { state.to = $("to").value; other(); link(); };
$("controls").onsubmit = (event) => event.preventDefault();
$("strip").onclick = ({ target }) => {
  if (target.tagName !== "SPAN") return;
  state.devices = Number(target.textContent);
  showDevices(state.devices);
  judge();
};
$("answer").onclick = ({ target }) => {
  const take = target.closest(".take"), copy = target.closest(".copy");
  if (take) change(JSON.parse(take.dataset.changes));
  if (copy) copied(copy, copy.closest("figure").querySelector("code").textContent);
};
$("share").onclick = () => copied($("share"), location.href);
async function copied(button, text) {
  const before = button.textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Not allowed here"; }
  setTimeout(() => { button.textContent = before; }, 1600);
}
document.querySelector("[role=tablist]").onclick = ({ target }) => { if (target.dataset.view) view(target.dataset.view); };
document.querySelector("[role=tablist]").onkeydown = (event) => {
  const tabs = [...document.querySelectorAll("[role=tab]")], place = tabs.indexOf(document.activeElement);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const next = step ? (place + step + tabs.length) % tabs.length : { Home: 0, End: tabs.length - 1 }[event.key];
  if (place < 0 || next === undefined) return;
  event.preventDefault();
  tabs[next].focus();
  view(tabs[next].dataset.view);
};
let resizing;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => (state.view === "meaning" ? judge() : other()), 200); });
addEventListener("hashchange", async () => { if (await fromLink()) showState(); });

function showState() {
  $("text").value = state.text;
  $("other").value = state.other;
  $("number").value = state.number;
  $("group").value = state.group;
  showDevices(state.devices);
  judge();
  if (state.view !== "meaning") view(state.view);
}

async function begin() {
  if (transport === "server") {
    $("promise").textContent = "Read by batchbridge on this machine. Nothing leaves it.";
    $("docs-link").remove();
    $("foot").remove();
  }
  const examples = await (await fetch("examples.json")).json();
  $("example").append(...examples.map(({ title }) => new Option(title, title)));
  $("example").onchange = () => {
    const chosen = examples.find(({ title }) => title === $("example").value);
    if (!chosen) return;
    Object.assign(state, { text: chosen.text, devices: chosen.devices, set: {}, framework: "", version: "" });
    showState();
  };
  if (!(await fromLink())) {
    underway.set("first", fetch("first.json").then((found) => (found.ok ? found.json() : null)).catch(() => null));
    Object.assign(state, { text: examples[0].text, devices: examples[0].devices });
    $("example").value = examples[0].title;
  }
  showState();
  const first = await underway.get("first");
  if (first && !answered) { showMeaning(first.meaning, { text: state.text, devices: state.devices }, true); showStrip(first.strip); }
}
begin().catch((error) => refuse(error.message));
