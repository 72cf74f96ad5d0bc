// What is shown, and the small helpers of all parts.

const DATA = JSON.parse(document.getElementById("data").textContent);
const MAX_ZOOM = 16;
const CACHED_SLICES = 12;
const SLOP = 6; // pixels that a pointer moves before it is a drag
const BRANCH = { proposal: 0, search: 1, stalled: 2 };
const $ = (id) => document.getElementById(id);

const state = {
  source: 0, slice: 0, left: 0, right: 0, split: 0.5, zoom: 1, x: 0.5, y: 0.5,
  errors: false, errorScale: 1, metric: 0, traced: 0, sort: { column: 0, descending: false }, order: [], shown: [],
};
let source = DATA.sources[0];
let planes = null; // the decoded pictures of the slice that is shown
let painted = new Map(); // images of the planes, ready to be drawn, by plane and mode
let panes = [];
const decoded = new Map();

// texts from the data only ever become text nodes and attributes
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function drawn(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const number = (value) => (value === null || value === undefined ? NaN : Number(value));
const signed = (text) => text.replaceAll("-", "−");
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function shown(value, digits) {
  if (Number.isNaN(value)) return "–";
  return Number.isFinite(value) ? signed(value.toFixed(digits)) : value > 0 ? "∞" : "−∞";
}

function fill(select, labels, chosen, values = labels.map((_, i) => i)) {
  select.replaceChildren(...labels.map((label, i) => make("option", { value: String(values[i]), textContent: label })));
  select.value = String(chosen);
}

const planeName = (plane) => (source.planes[plane] === null ? "reference" : source.methods[source.planes[plane]]);
const sliceLabel = (index) => {
  const [subject, name] = source.slices[index];
  return subject ? `${subject}: ${name}` : name;
};

// the slices with images or a record of iterations; the others have scores alone
const isShown = (index) =>
  Boolean(source.pictures.length ? source.pictures[index] : source.traces.some((traced) => traced.slices[index]));

// the first two scores of a plane in the slice that is shown, each as a text
function scoreTexts(plane) {
  const method = source.planes[plane];
  if (method === null) return [];
  return source.metrics.slice(0, 2).map((metric) => {
    const [name, unit = ""] = metric.label.replace(")", "").split(" (");
    return `${name} ${shown(score(method, metric, state.slice), metric.digits)} ${unit}`.trim();
  });
}

const score = (method, metric, index) => number((source.scores[method][metric.key] || [])[index]);
