// Choosing a slice or a result, the keyboard, and the start.

async function selectSlice(index) {
  state.slice = index;
  $("slice").value = String(index);
  markRow();
  drawCertificate();
  const number = state.shown.length < source.slices.length
    ? `Example ${state.shown.indexOf(index) + 1} of ${state.shown.length}` : `Slice ${index + 1} of ${source.slices.length}`;
  const place = `${number} – ${sliceLabel(index)}`;
  if (source.pictures.length === 0) {
    drawSampling();
    return;
  }
  const of = source;
  try {
    const found = await decode(index);
    if (of !== source || state.slice !== index) return; // another one was chosen meanwhile
    planes = found;
  } catch {
    $("status").textContent = `${place}: its picture cannot be decoded by this browser`;
    return;
  }
  painted = new Map();
  $("status").textContent = place;
  drawImages();
  drawSampling();
}

function stepSlice(by) {
  const order = state.order.filter(isShown);
  selectSlice(order[clamp(order.indexOf(state.slice) + by, 0, order.length - 1)]);
}

function buildPanes() {
  $("panes").replaceChildren();
  panes = source.planes.map((_, plane) => {
    const canvas = make("canvas", { role: "img" });
    const score = make("div", { className: "muted" });
    const buttons = [["left", "Left"], ["right", "Right"]].map(([side, label]) => {
      const button = make("button", { type: "button", textContent: label, "aria-label": `${label}: show ${planeName(plane)}` });
      button.addEventListener("click", () => setSide(side, plane));
      return button;
    });
    $("panes").append(make("figure", {}, canvas, make("figcaption", {},
      make("div", { className: "pane-name", textContent: planeName(plane) }), score,
      make("div", { className: "pane-buttons" }, ...buttons))));
    listenToPointer(canvas);
    return { canvas, plane, score, buttons };
  });
}

function selectSource(index) {
  state.source = index;
  source = DATA.sources[index];
  planes = null;
  for (const section of document.querySelectorAll(".source")) section.hidden = Number(section.dataset.source) !== index;
  const hasImages = source.pictures.length > 0;
  $("viewer").hidden = $("help").hidden = !hasImages;
  $("skip").hash = hasImages ? "viewer" : "slices";
  $("skip").textContent = `Skip to the ${hasImages ? "images" : "slices"}`;
  $("slices").hidden = false;
  $("error-tools").hidden = !source.hasReference;
  $("metric-tools").hidden = $("star-text").hidden = source.metrics.length === 0;
  state.shown = source.slices.map((_, i) => i).filter(isShown);
  state.slice = state.shown.length ? state.shown[0] : -1;
  fill($("slice"), state.shown.map(sliceLabel), state.slice, state.shown);
  state.traced = Math.max(0, source.traces.findIndex((traced) => traced.method === source.methods[source.judged]));
  fill($("traced"), source.traces.map((traced) => traced.method), state.traced);
  $("traced-tools").hidden = source.traces.length < 2;
  const names = source.planes.map((_, plane) => planeName(plane));
  state.left = 0;
  state.right = Math.max(0, source.planes.indexOf(source.judged));
  if (state.right === 0) state.right = names.length - 1;
  fill($("left"), names, state.left);
  fill($("right"), names, state.right);
  const scales = [1, 0.5, 0.25, 0.1].map((part) => part * source.errorScale);
  fill($("error-scale"), scales.map((value) => `0 to ${Number(value.toPrecision(3))}`), 0);
  state.errorScale = source.errorScale;
  state.metric = 0;
  state.sort = { column: 0, descending: false };
  fill($("metric"), source.metrics.map((metric) => metric.label), 0);
  $("precision").textContent = source.precision &&
    `${source.precision} Numbers come from the images before this rounding.` +
    (source.hasReference ? " Error maps are differences of the rounded images." : "");
  if (hasImages && !readsBackTruly()) {
    $("precision").textContent =
      "This browser changes what a page reads from a canvas, so the images are not to be trusted; " +
      "allow it for this file, or use another browser.";
  }
  buildPanes();
  buildTable();
  setView(1, 0.5, 0.5);
  setErrors(false);
  drawCertificate();
  drawSampling();
  if (state.shown.length) selectSlice(state.slice);
}

function listenToKeys() {
  const pan = (dx, dy) => setView(state.zoom, state.x + (0.1 * dx) / state.zoom, state.y + (0.1 * dy) / state.zoom);
  const keys = {
    ArrowLeft: () => stepSlice(-1), ArrowRight: () => stepSlice(1),
    "[": () => setSplit(state.split - 0.05), "]": () => setSplit(state.split + 0.05),
    "+": () => zoomAt(1.5), "=": () => zoomAt(1.5), "-": () => zoomAt(1 / 1.5), 0: () => setView(1, 0.5, 0.5),
    h: () => pan(-1, 0), l: () => pan(1, 0), k: () => pan(0, -1), j: () => pan(0, 1),
    e: () => setErrors(!state.errors), s: swap,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !$("shortcuts").checked || $("viewer").hidden) return;
    const target = event.target;
    if (target instanceof HTMLSelectElement || (target instanceof HTMLInputElement && target.type !== "checkbox")) return;
    // a region that scrolls sideways needs the arrows itself
    const scrolls = target instanceof Element && target.matches(".scroll") && target.scrollWidth > target.clientWidth;
    if (scrolls && event.key.startsWith("Arrow")) return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

function start() {
  const theme = $("theme");
  const prefers = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (prefers.matches ? "dark" : "light")) === "dark";
  const label = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", isDark() ? "Light colours" : "Dark colours");
  };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  prefers.addEventListener("change", label);
  label();
  theme.hidden = false;

  const bar = $("colours").getContext("2d");
  DATA.colours.forEach(([red, green, blue], i) => {
    bar.fillStyle = `rgb(${red}, ${green}, ${blue})`;
    bar.fillRect(i, 0, 1, 1);
  });
  $("previous").addEventListener("click", () => stepSlice(-1));
  $("next").addEventListener("click", () => stepSlice(1));
  $("slice").addEventListener("change", (event) => selectSlice(Number(event.target.value)));
  $("left").addEventListener("change", (event) => setSide("left", Number(event.target.value)));
  $("right").addEventListener("change", (event) => setSide("right", Number(event.target.value)));
  $("swap").addEventListener("click", swap);
  $("split").addEventListener("input", (event) => setSplit(Number(event.target.value) / 100));
  $("zoom-in").addEventListener("click", () => zoomAt(1.5));
  $("zoom-out").addEventListener("click", () => zoomAt(1 / 1.5));
  $("zoom-reset").addEventListener("click", () => setView(1, 0.5, 0.5));
  $("errors").addEventListener("change", (event) => setErrors(event.target.checked));
  $("error-scale").addEventListener("change", (event) => {
    state.errorScale = source.errorScale * [1, 0.5, 0.25, 0.1][Number(event.target.value)];
    setErrors(true);
  });
  $("metric").addEventListener("change", (event) => {
    state.metric = Number(event.target.value);
    buildTable();
  });
  $("traced").addEventListener("change", (event) => {
    state.traced = Number(event.target.value);
    drawCertificate();
  });
  const choice = $("source");
  if (choice) choice.addEventListener("change", (event) => selectSource(Number(event.target.value)));
  listenToPointer($("slider"));
  listenToKeys();
  watchTables();
  new ResizeObserver(() => {
    drawImages();
    drawSampling();
  }).observe(document.querySelector("main"));
  selectSource(0);
}

start();
