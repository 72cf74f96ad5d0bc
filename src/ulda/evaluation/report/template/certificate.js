// What the iterations of a slice did.

function drawCertificate() {
  const traced = source.traces[state.traced];
  $("certificate").hidden = traced === undefined;
  if (traced === undefined) return;
  const steps = (traced.slices[state.slice] || []).map(([eps, before, phi, gradBefore, grad, branch, searches, descended]) => ({
    eps: number(eps), before: number(before), phi: number(phi), gradBefore: number(gradBefore), grad: number(grad),
    branch, searches, descended: Boolean(descended),
  }));
  const counted = steps.every((step) => step.searches >= 0);
  const refused = steps.filter((step) => step.branch === BRANCH.search).length;
  const stalled = steps.filter((step) => step.branch === BRANCH.stalled).length;
  const all = steps.every((step) => step.descended);
  const followed = traced.phases && traced.phases < steps.length;
  $("descent").textContent =
    `${traced.method}, ${sliceLabel(state.slice)}: ${all ? "every" : "NOT every"} one of ${steps.length} iterations descended` +
    `; ${steps.length - refused - stalled} took the learned proposal, ${refused} refused it for a line-search step` +
    (stalled ? `, ${stalled} found no step.` : ".") +
    (followed ? ` Iteration ${traced.phases}, the dashed line, gave the image above; from there it was followed further.` : "");
  // phi jumps where its smoothing eps changes; phi plus half of eps per pixel may not rise in any iteration
  const gap = (source.size[0] * source.size[1]) / 2;
  const first = steps[0];
  const objective = first ? [first.before + gap * first.eps, ...steps.map((step) => step.phi + gap * step.eps)] : [];
  const gradient = first ? [first.gradBefore, ...steps.map((step) => step.grad)] : [];
  const branches = [null, ...steps.map((step) => step.branch)];
  $("plots").replaceChildren(
    plot("Objective: φ + (pixels / 2) ε", "objective", objective, branches, followed ? traced.phases : null),
    plot("Norm of the gradient of φ", "gradient", gradient, branches, followed ? traced.phases : null),
  );
  const labels = ["Iteration", "ε", "φ before", "φ after", "‖∇φ‖ after", "Step",
    ...(counted ? ["Shortenings"] : []), "Descended"];
  const headings = labels.map((label) => make("th", { scope: "col", textContent: label }));
  const digits = (value) => (Number.isFinite(value) ? signed(value.toPrecision(6)) : "–");
  $("iterations").tHead.replaceChildren(make("tr", {}, ...headings));
  $("iterations").tBodies[0].replaceChildren(...steps.map((step, t) => make("tr", {},
    make("th", { scope: "row", textContent: String(t + 1) }),
    ...[step.eps, step.before, step.phi, step.grad].map((value) => make("td", { textContent: digits(value) })),
    make("td", { textContent: ["proposal", "line search", "none"][step.branch] }),
    ...(counted ? [make("td", { textContent: String(step.searches) })] : []),
    make("td", { textContent: step.descended ? "yes" : "NO" }),
  )));
}

function ticksOf(low, high, log) {
  if (log) {
    const found = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade++) {
      for (const digit of [1, 2, 5]) found.push(digit * 10 ** decade);
    }
    const inside = found.filter((value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
    const decades = inside.filter((value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9);
    if (inside.length > 7 && decades.length >= 2) {
      const every = Math.ceil(decades.length / 7);
      return decades.filter((_, i) => i % every === 0);
    }
    if (inside.length >= 2) return inside;
  }
  const raw = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((value) => value >= raw * (1 - 1e-9));
  const marks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) marks.push(n * step);
  return marks;
}

function plot(title, kind, values, branches, imageAt) {
  const width = 460, height = 270, left = 80, right = width - 12, top = 34, bottom = height - 44;
  const finite = values.filter(Number.isFinite);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.append(drawn("text", { x: left, y: 18, class: "title" }, title));
  if (finite.length === 0) {
    svg.setAttribute("aria-label", `${title}: no values`);
    return svg;
  }
  let low = Math.min(...finite), high = Math.max(...finite);
  const log = low > 0 && high / low > 3;
  if (high - low <= 1e-9 * Math.abs(high)) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  // the curve keeps off the frame
  if (log) [low, high] = [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
  else [low, high] = [low - 0.04 * (high - low), high + 0.04 * (high - low)];
  const scaled = log ? Math.log10 : (value) => value;
  const px = (t) => left + (t / Math.max(1, values.length - 1)) * (right - left);
  const py = (value) => bottom - ((scaled(value) - scaled(low)) / (scaled(high) - scaled(low))) * (bottom - top);
  svg.setAttribute("aria-label",
    `${title}${log ? ", logarithmic" : ""}: from ${values[0].toPrecision(4)} to ${values.at(-1).toPrecision(4)} ` +
    `in ${values.length - 1} iterations`);
  for (const value of ticksOf(low, high, log)) {
    svg.append(drawn("line", { x1: left, x2: right, y1: py(value), y2: py(value), class: "grid" }),
      drawn("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end" }, signed(String(Number(value.toPrecision(4))))));
  }
  const step = Math.max(1, Math.ceil((values.length - 1) / 8));
  for (let t = 0; t < values.length; t += step) {
    svg.append(drawn("text", { x: px(t), y: bottom + 18, "text-anchor": "middle" }, String(t)));
  }
  if (imageAt !== null) svg.append(drawn("line", { x1: px(imageAt), x2: px(imageAt), y1: top, y2: bottom, class: "image-at" }));
  svg.append(drawn("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, "iteration"));
  if (log) {
    const place = `translate(12 ${(top + bottom) / 2}) rotate(-90)`;
    svg.append(drawn("text", { transform: place, "text-anchor": "middle" }, "logarithmic scale"));
  }
  const points = [];
  values.forEach((value, t) => {
    if (Number.isFinite(value)) points.push(`${px(t).toFixed(1)},${py(value).toFixed(1)}`);
  });
  svg.append(drawn("polyline", { points: points.join(" "), class: `curve ${kind}`, fill: "none" }));
  values.forEach((value, t) => {
    if (!Number.isFinite(value) || branches[t] === null) return;
    const place = `translate(${px(t).toFixed(1)} ${py(value).toFixed(1)})`;
    if (branches[t] === BRANCH.proposal) {
      if (values.length <= 60) svg.append(drawn("circle", { r: 3.5, transform: place, class: kind }));
    } else if (branches[t] === BRANCH.search) {
      svg.append(drawn("path", { d: "M0 6 L6 -5 L-6 -5 Z", transform: place, class: `${kind} mark-refused` }));
    } else svg.append(drawn("path", { d: "M-5 -5 L5 5 M5 -5 L-5 5", transform: place, class: `${kind} mark-stalled` }));
  });
  return svg;
}
