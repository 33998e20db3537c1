// The playground. Sends the texts to the server while the user types, and shows the response. Content of texts and responses
// is inserted as text nodes, never as HTML.

import { $, Editor, coloured, h } from "./editor.js";

const EDITORS = ["profile", "object", "namespace", "parameters"];
// The delay between the last keystroke and a run, in milliseconds.
const PAUSE_MS = 160;
// The maximum size of the texts in a link, in bytes: the server's limit.
const MAX_LINK_BYTES = 2 * 1024 * 1024;

const AWAY = "pillion dev does not respond: check that it is still running.";

const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

// --- Tabs --------------------------------------------------------------------------------------------------------------

const tabsOf = (tab) => [...tab.closest('[role="tablist"]').querySelectorAll('[role="tab"]')];

function select(tab) {
  for (const other of tabsOf(tab)) {
    const isIt = other === tab;
    other.setAttribute("aria-selected", String(isIt));
    other.tabIndex = isIt ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !isIt;
  }
}

/** Makes an editor visible, which may be behind another tab. */
function reveal(name) {
  const tab = $(`${name}-tab`);
  if (tab) select(tab);
}

for (const tab of document.querySelectorAll('[role="tab"]')) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const tabs = tabsOf(tab);
    const here = tabs.indexOf(tab);
    const places = { ArrowRight: here + 1, ArrowLeft: here - 1 + tabs.length, Home: 0, End: tabs.length - 1 };
    if (!(event.key in places)) return;
    event.preventDefault();
    const next = tabs[places[event.key] % tabs.length];
    select(next);
    next.focus();
  });
}

// --- Result ------------------------------------------------------------------------------------------------------------

const code = (rows) => h("div", { className: "code" }, rows);
const empty = (text) => h("p", { className: "empty" }, text);

/** Returns the outcome of a pod: its label, its grade and its reason. */
function outcome(pod) {
  if (pod.refused) return ["Rejected", "bad", pod.refused];
  const { outcome, message } = pod.decision;
  if (outcome === "denied") return ["Rejected", "bad", message];
  const failed = (pod.explanation?.profiles ?? []).find((profile) => profile.outcome === "skipped");
  if (outcome === "injected") return ["Injected", "good", message];
  if (outcome === "unchanged") return ["Unchanged", "mild", message];
  return ["Not injected", failed ? "bad" : "mild", failed ? `${failed.profile}: ${failed.message}` : message];
}

function outcomes(result) {
  return result.pods.map((pod) => {
    const [word, grade, why] = outcome(pod);
    return h("div", { className: "outcome" },
      h("span", { className: `badge ${grade}` }, word),
      h("p", {}, h("strong", {}, pod.name), " ", why));
  });
}

/** Returns the injected manifest. Added lines are `ins` elements, which screen readers announce. */
function injected(result) {
  const added = new Set();
  for (const hunk of result.diff) {
    let line = hunk.start;
    for (const { change } of hunk.lines) {
      if (change === "added") added.add(line);
      if (change !== "removed") line += 1;
    }
  }
  const lines = result.objects.replace(/\n$/, "").split("\n");
  return code(lines.map((line, index) => h(added.has(index + 1) ? "ins" : "div", {}, coloured(line))));
}

const TAGS = { same: "div", added: "ins", removed: "del" };

function difference(result) {
  if (result.diff.length === 0) return empty("Nothing is changed.");
  return code(result.diff.flatMap((hunk) => [
    h("div", { className: "hunk" }, hunk.header),
    ...hunk.lines.map(({ change, text }) => h(TAGS[change], {}, coloured(text))),
  ]));
}

/** Returns the patches of all changed objects as indented JSON. */
function patchText(result) {
  const patches = result.patches.filter((patch) => patch.length > 0);
  return patches.map((patch) => JSON.stringify(patch, null, 2)).join("\n");
}

function patch(result) {
  const text = patchText(result);
  return text === "" ? empty("There is nothing to patch.") : code(text.split("\n").map((line) => h("div", {}, coloured(line))));
}

const SIGNS = { added: "+", replaced: "~", removed: "−" };
const FROM = { serviceAccount: "service account", namespaceProfile: "the namespace's profile" };

function parameter({ name, value, from, error }) {
  const shown = error ? h("span", {}, error) : h("code", {}, typeof value === "string" ? value : JSON.stringify(value));
  const set = from.map(({ source, key }) => (key ? `${key} of the ${FROM[source] ?? source}` : FROM[source] ?? source));
  return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, shown), h("td", {}, set.join(", ") || "not set"));
}

function profile(view) {
  const isGood = ["applied", "unchanged", "validated"].includes(view.outcome);
  const isBad = ["skipped", "denied"].includes(view.outcome);
  const card = h("div", { className: "card" },
    h("div", { className: "head" },
      h("strong", {}, view.profile), h("span", { className: "soft" }, view.revision),
      h("span", { className: `badge ${isGood ? "good" : isBad ? "bad" : ""}` }, view.outcome.replaceAll("_", " "))),
    ["applied", "unchanged"].includes(view.outcome) ? null : h("p", {}, view.message));
  if (view.parameters.length > 0) {
    const head = ["Parameter", "Value", "Set by"].map((text) => h("th", { scope: "col" }, text));
    card.append(h("details", { open: view.parameters.length <= 12 && isGood },
      h("summary", {}, counted(view.parameters.length, "parameter")),
      h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, view.parameters.map(parameter)))));
  }
  return card;
}

function explanation(pod) {
  const { explanation } = pod;
  const [word, grade, why] = outcome(pod);
  const parts = [h("h3", {}, pod.name), h("p", {}, h("span", { className: `badge ${grade}` }, word), " ", why)];
  const told = [...pod.decision.notices, ...pod.warnings];
  if (told.length > 0) parts.push(h("h4", {}, "Warnings for the author"), h("ul", {}, told.map((text) => h("li", {}, text))));
  if (explanation?.findings.length > 0) {
    parts.push(h("h4", {}, "Findings"), ...explanation.findings.map((finding) => h("div", { className: "card" },
      h("div", { className: "head" }, h("strong", {}, finding.code),
        h("span", { className: `badge ${finding.severity === "error" ? "bad" : "mild"}` }, finding.severity)),
      h("p", {}, finding.message), h("p", { className: "do soft" }, finding.remedy))));
  }
  if (explanation?.profiles.length > 0) parts.push(h("h4", {}, "Profiles"), ...explanation.profiles.map(profile));
  if (pod.changes.length > 0) {
    parts.push(h("h4", {}, "Changes"), h("ul", { className: "changes" }, pod.changes.map((change) =>
      h("li", {}, h("span", { className: `sign ${change.what}`, title: change.what }, SIGNS[change.what]),
        h("span", { className: "unseen" }, `${change.what} `), change.path, h("span", { className: "soft" }, `  ${change.by}`)))));
  }
  const called = (explanation?.webhooks ?? []).filter((entry) => entry.outcome === "called").map((entry) => entry.name);
  if (explanation) {
    parts.push(h("h4", {}, "In a cluster"), h("p", {}, called.length > 0
      ? `The API server calls ${called.join(", ")}.` : "The API server does not call Pillion for this object."));
  }
  return parts;
}

let last = null;

function showResult(result) {
  last = result;
  $("outcomes").replaceChildren(...outcomes(result));
  const views = { injected: [injected(result)], diff: [difference(result)], patch: [patch(result)], explanation: result.pods.flatMap(explanation) };
  for (const [name, parts] of Object.entries(views)) $(`${name}-panel`).replaceChildren(...parts);
  $("result").classList.remove("stale");
}

/** Shows why there is no result for the current texts. The last result remains visible, because it helps to find the error. */
function showNone(why) {
  const row = h("div", { className: "outcome now" }, h("span", { className: "badge bad" }, "Not run"),
    h("p", {}, why, last ? " The previous result is shown below." : ""));
  $("outcomes").querySelector(".now")?.remove();
  $("outcomes").prepend(row);
  $("result").classList.add("stale");
}

/** Sets the status line at the foot of the page, which screen readers announce. */
function say(text) {
  if ($("status").textContent !== text) $("status").textContent = text;
}

function summary(result, problems, ms) {
  const added = result.diff.flatMap((hunk) => hunk.lines).filter(({ change }) => change === "added").length;
  const words = result.pods.map((pod) => `${pod.name}: ${outcome(pod)[0].toLowerCase()}`).join(", ");
  const warned = problems > 0 ? `, ${counted(problems, "warning")}` : "";
  $("status").dataset.ms = String(ms);
  return `${words}, ${counted(added, "line")} added${warned}.`;
}

// --- Requests ----------------------------------------------------------------------------------------------------------

let timer = 0;
let asking = null;

const texts = () => Object.fromEntries(EDITORS.map((name) => [name, editors[name].text]));

/** Returns the server's response. Throws an error with a message for the user, or an AbortError. */
async function fetched(address, options) {
  let response;
  let body;
  try {
    response = await fetch(address, options);
    body = await response.text();
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(AWAY);
  }
  const answer = JSON.parse(body);
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/** Starts a run after a short pause in typing. */
function changed() {
  document.body.dataset.state = "asking";
  remember();
  // The link in the address no longer matches the texts.
  if (location.hash !== "") history.replaceState(null, "", location.pathname);
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MS);
}

/** Cancels the current and the scheduled run, because the texts have changed. Returns the controller of the next run. */
function giveUp() {
  clearTimeout(timer);
  asking?.abort();
  return (asking = new AbortController());
}

async function ask() {
  const own = giveUp();
  hold(false);
  document.body.dataset.state = "asking";
  const began = performance.now();
  const fail = (why) => {
    showNone(why);
    say(why);
    document.body.dataset.state = "done";
  };
  let answer;
  try {
    const request = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(texts()), signal: own.signal };
    answer = await fetched("/playground/run", request);
  } catch (error) {
    return own === asking && error.name !== "AbortError" ? fail(error.message) : undefined;
  }
  if (own !== asking) return;
  try {
    show(answer, Math.round(performance.now() - began));
    document.body.dataset.state = "done";
  } catch (error) {
    fail(`The page cannot show the response. This is a bug in Pillion: ${error.message}`);
  }
}

function show({ diagnostics, result }, ms) {
  for (const editor of Object.values(editors)) {
    editor.show(diagnostics.filter((problem) => problem.file === editor.area.dataset.file));
  }
  if (result) {
    showResult(result);
    say(summary(result, diagnostics.length, ms));
    return;
  }
  const errors = diagnostics.filter((problem) => problem.severity === "error");
  const [first] = errors;
  if (!first) {
    const why = "There is neither a result nor an error. This is a bug in Pillion.";
    showNone(why);
    return say(why);
  }
  const place = `${first.file.replace(".yaml", "")}${first.line ? `, line ${first.line}` : ""}`;
  showNone(`${counted(errors.length, "problem")}, the first in ${place}.`);
  say(`${counted(errors.length, "problem")}. ${place}: ${first.message}`);
}

// --- Examples, links, storage ------------------------------------------------------------------------------------------

const editors = Object.fromEntries(EDITORS.map((name) => [name, new Editor(name, changed, () => reveal(name))]));
// `loaded`: the texts as last loaded. `replaced`: the user's own texts that a later load replaced.
let loaded = JSON.stringify(texts());
let replaced = null;
let isHeld = false;

/** Loads texts. `isOwn`: the user wrote them here. `isFromLink`: they are shown, and run only once the user confirms. */
async function load(all, { isOwn = false, isFromLink = false } = {}) {
  const before = JSON.stringify(texts());
  for (const name of EDITORS) editors[name].text = typeof all[name] === "string" ? all[name] : "";
  const now = JSON.stringify(texts());
  // The user's own texts are kept, so that loading others does not lose them.
  if (before !== loaded && before !== now) replaced = JSON.parse(before);
  $("restore").hidden = replaced === null;
  loaded = isOwn ? null : now;
  if (!isFromLink) {
    await ask();
    return;
  }
  // Any page can link here, so texts from a link are not run before the user has seen them.
  giveUp();
  hold(true);
  if (last) $("result").classList.add("stale");
  document.body.dataset.state = "held";
  say("This content comes from a link, and has not run yet.");
}

/** Sets whether the texts wait for the user's confirmation to run. */
function hold(isIt) {
  isHeld = isIt;
  $("linked").hidden = !isIt;
  remember();
}

function remember() {
  try {
    const isOwn = JSON.stringify(texts()) !== loaded;
    sessionStorage.setItem("texts", JSON.stringify({ ...texts(), example: $("examples").value, isOwn, isHeld, replaced }));
  } catch {
    // The texts are too large, or the browser has no storage: they are lost when the user leaves the page.
  }
}

const GROUPS = { here: "On this machine", shipped: "Shipped with Pillion" };

async function readExamples() {
  const examples = await fetched("/playground/examples");
  for (const [group, label] of Object.entries(GROUPS)) {
    const options = examples.filter((one) => one.group === group)
      .map((one) => h("option", { value: one.id, dataset: { about: one.about } }, one.name));
    if (options.length > 0) $("examples").append(h("optgroup", { label }, options));
  }
  return examples;
}

function describe() {
  $("about").textContent = $("examples").selectedOptions[0]?.dataset.about ?? "";
}

let choosing = null;

async function loadExample(id) {
  // The last chosen example is loaded, even if the response to an earlier choice arrives later.
  choosing?.abort();
  const own = (choosing = new AbortController());
  let example;
  try {
    example = await fetched(`/playground/example?id=${encodeURIComponent(id)}`, { signal: own.signal });
  } catch (error) {
    if (own === choosing && error.name !== "AbortError") say(error.message);
    return;
  }
  if (own !== choosing) return;
  $("examples").value = id;
  describe();
  await load(example);
}

const transformed = (bytes, stream) => new Response(new Blob([bytes]).stream().pipeThrough(stream));

/** Returns the texts as a URL fragment, which browsers never send to a server. */
async function toLink() {
  const bytes = await transformed(JSON.stringify(texts()), new CompressionStream("deflate-raw")).arrayBuffer();
  const letters = btoa(Array.from(new Uint8Array(bytes), (byte) => String.fromCharCode(byte)).join(""));
  return `#v1.${letters.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

async function fromLink(fragment) {
  if (!fragment.startsWith("#v1.")) return null;
  try {
    const letters = atob(fragment.slice(4).replaceAll("-", "+").replaceAll("_", "/"));
    const stream = transformed(Uint8Array.from(letters, (letter) => letter.charCodeAt(0)), new DecompressionStream("deflate-raw"));
    // Compressed data can expand to any size, so it is limited to what the server accepts.
    const chunks = [];
    const reader = stream.body.getReader();
    for (let size = 0, next = await reader.read(); !next.done; next = await reader.read()) {
      size += next.value.length;
      if (size > MAX_LINK_BYTES) throw new Error("too large");
      chunks.push(next.value);
    }
    const all = JSON.parse(await new Blob(chunks).text());
    return typeof all?.profile === "string" && typeof all?.object === "string" ? all : null;
  } catch {
    return null;
  }
}

async function share() {
  history.replaceState(null, "", await toLink());
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link with this content is in the clipboard.");
  } catch {
    say("The address of this page now contains this content: copy it from the address bar.");
  }
}

async function copy() {
  const tab = document.querySelector('.result [aria-selected="true"]');
  const text = { "injected-tab": last?.objects, "patch-tab": last && patchText(last) }[tab.id] ?? $(tab.getAttribute("aria-controls")).innerText;
  try {
    await navigator.clipboard.writeText(text);
    say(`${tab.textContent} is in the clipboard.`);
  } catch {
    say("The browser does not allow copying: select the text and copy it.");
  }
}

function theme(choice) {
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
}

/** Goes to the next or the previous problem. */
function step(isBack) {
  const all = Object.values(editors).flatMap((editor) => editor.problems.map((problem) => [editor, problem]));
  if (all.length === 0) return;
  step.at = ((step.at ?? (isBack ? 0 : -1)) + (isBack ? all.length - 1 : 1)) % all.length;
  const [editor, problem] = all[step.at];
  editor.goTo(problem);
}

async function start() {
  let kept = null;
  try {
    const choice = localStorage.getItem("theme") ?? "auto";
    theme(choice);
    document.querySelector(`[name="theme"][value="${CSS.escape(choice)}"]`)?.click();
    kept = JSON.parse(sessionStorage.getItem("texts"));
  } catch {
    // Without storage, the page starts like on the first visit.
  }
  const examples = await readExamples();
  const linked = await fromLink(location.hash);
  const own = examples.filter((one) => one.group === "here");
  const offered = own.length > 0 ? own : examples;
  const first = offered.find((one) => one.name === "nginx") ?? offered[0];
  replaced = kept?.replaced ?? null;
  // If this tab already had the texts of the link, their stored state is restored: the example, and whether they may run.
  const isKept = kept && (!linked || EDITORS.every((name) => (linked[name] ?? "") === (kept[name] ?? "")));
  if (isKept) {
    $("examples").value = kept.example ?? "";
    describe();
    await load(kept, { isOwn: kept.isOwn, isFromLink: kept.isHeld });
  } else if (linked) {
    if (kept?.isOwn) replaced = Object.fromEntries(EDITORS.map((name) => [name, kept[name]]));
    await loadLink(linked);
  } else if (first) {
    await loadExample(first.id);
    // If the example could not be loaded, nothing is pending.
    if (document.body.dataset.state === undefined) document.body.dataset.state = "done";
  }
}

function loadLink(linked) {
  choosing?.abort();
  choosing = null;
  $("examples").value = "";
  describe();
  return load(linked, { isFromLink: true });
}

$("examples").addEventListener("change", (event) => loadExample(event.target.value));
$("restore").addEventListener("click", () => {
  $("restore").hidden = true;
  const own = replaced;
  replaced = null;
  $("profile").focus();
  load(own, { isOwn: true });
});
$("run").addEventListener("click", () => {
  $("injected-tab").focus();
  ask();
});
$("share").addEventListener("click", share);
$("copy").addEventListener("click", copy);
$("help").addEventListener("click", () => $("keys").showModal());
for (const input of document.querySelectorAll('[name="theme"]')) {
  input.addEventListener("change", () => {
    theme(input.value);
    try {
      localStorage.setItem("theme", input.value);
    } catch {
      // Without storage, the choice lasts until the user leaves the page.
    }
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "F8") return;
  event.preventDefault();
  step(event.shiftKey);
});
addEventListener("hashchange", async () => {
  const linked = await fromLink(location.hash);
  if (linked) await loadLink(linked);
});

start().catch((error) => {
  say(error.message);
  document.body.dataset.state = "done";
});
