// Checks of the page, run as the body of a function that returns the problems.
const visible = (element) => element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length > 0;
const name = (element) => `${element.tagName.toLowerCase()}${element.id ? `#${element.id}` : ""}.${element.className}`;

// Parses a colour into numbers, including its opacity.
const channels = (text) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d");
  canvas.fillStyle = text;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
};
const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
const ground = (element) => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    const layer = channels(getComputedStyle(at).backgroundColor);
    layers.push(layer);
    if (layer[3] === 1) break;
  }
  return layers.reduceRight((below, layer) => over(layer, below), [255, 255, 255, 1]);
};
const luminance = ([r, g, b]) => {
  const linear = [r, g, b].map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const contrast = (one, other) => {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
};

const wrong = [];
const seen = new Set();

// Every text has enough contrast to its background.
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !visible(element) || element.closest(".unseen, textarea, noscript, script, optgroup, option")) continue;
  const style = getComputedStyle(element);
  const behind = ground(element);
  const ratio = contrast(over(channels(style.color), behind), behind);
  const pair = `${style.color} on ${behind.map(Math.round)}`;
  if (ratio < 4.5 && !seen.has(pair)) wrong.push(`contrast ${ratio.toFixed(2)}: ${pair} of ${name(element)}`);
  seen.add(pair);
}
// Highlights are between the text and its background.
for (const mark of document.querySelectorAll(".mark")) {
  const behind = over(channels(getComputedStyle(mark).backgroundColor), ground(mark.parentElement));
  for (const letter of mark.parentElement.querySelectorAll("span[class]:not(.mark)")) {
    const ratio = contrast(channels(getComputedStyle(letter).color), behind);
    if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)} of ${name(letter)} on a mark`);
  }
}

// Names and references resolve.
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`the id ${id} occurs twice`);
for (const attribute of ["aria-controls", "aria-labelledby", "aria-describedby", "for"]) {
  for (const element of document.querySelectorAll(`[${attribute}]`)) {
    for (const id of element.getAttribute(attribute).split(/\s+/)) {
      if (!document.getElementById(id)) wrong.push(`${attribute}=${id} of ${name(element)} refers to no element`);
    }
  }
}
for (const list of document.querySelectorAll('[role="tablist"]')) {
  const tabs = [...list.querySelectorAll('[role="tab"]')];
  if (tabs.filter((tab) => tab.getAttribute("aria-selected") === "true").length !== 1) wrong.push("not exactly one tab is selected");
  if (tabs.filter((tab) => tab.tabIndex === 0).length !== 1) wrong.push("not exactly one tab is reachable by the Tab key");
}
if (document.documentElement.lang !== "en") wrong.push("the document has no language");
if (document.querySelectorAll("h1").length !== 1) wrong.push("there is not exactly one h1");
for (const landmark of ["header", "main", "footer"]) {
  if (document.querySelectorAll(`body > ${landmark}`).length !== 1) wrong.push(`there is not exactly one ${landmark}`);
}
if (!document.querySelector('[role="status"]')) wrong.push("there is no status region for screen readers");
for (const image of document.images) if (!image.hasAttribute("alt")) wrong.push(`${name(image)} has no alt`);
// Controls are large enough for touch and for imprecise pointing.
for (const control of document.querySelectorAll("button, select, summary, .switch label")) {
  const { width, height } = control.getBoundingClientRect();
  if (visible(control) && (width < 24 || height < 20)) wrong.push(`${name(control)} is ${width} by ${height}`);
}
// No element makes the page wider than the window.
if (document.scrollingElement.scrollWidth > innerWidth) wrong.push(`the page is ${document.scrollingElement.scrollWidth} wide`);
return wrong;
