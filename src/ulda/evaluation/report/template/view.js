// The view that all images share: zoom, place, divider, sides, error maps.

function setView(zoom, x, y) {
  state.zoom = clamp(zoom, 1, MAX_ZOOM);
  const margin = 0.5 / state.zoom;
  state.x = clamp(x, margin, 1 - margin);
  state.y = clamp(y, margin, 1 - margin);
  drawImages();
}

// zoom so that the point under the pointer stays where it is
function zoomAt(factor, atX = 0.5, atY = 0.5) {
  const zoom = clamp(state.zoom * factor, 1, MAX_ZOOM);
  const shift = 1 / state.zoom - 1 / zoom;
  setView(zoom, state.x + (atX - 0.5) * shift, state.y + (atY - 0.5) * shift);
}

function listenToPointer(canvas) {
  const pointers = new Map();
  let mode = "";
  let distance = 0;
  let start = [0, 0]; // in the window: the image scrolls along with a finger that scrolls
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  };
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, at(event));
    start = [event.clientX, event.clientY];
    canvas.setPointerCapture(event.pointerId);
    mode = "begun";
    if (pointers.size === 2) {
      mode = "pinch";
      distance = spread(pointers);
    }
  });
  // a whole image cannot be panned, so that a drag on it divides once it is sideways; a swipe that scrolls never is
  const intent = (startX, across, down) => {
    if (Math.hypot(across, down) < SLOP) return "begun";
    const nearDivider = Math.abs(startX - state.split) * canvas.clientWidth < 24;
    const isSideways = Math.abs(across) > Math.abs(down);
    if (canvas.id === "slider" && isSideways && (nearDivider || state.zoom === 1)) return "divide";
    return state.zoom === 1 ? "begun" : "pan";
  };
  canvas.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return;
    const [oldX, oldY] = pointers.get(event.pointerId);
    const [x, y] = at(event);
    if (mode === "begun") mode = intent(oldX, event.clientX - start[0], event.clientY - start[1]);
    if (mode === "begun") return;
    pointers.set(event.pointerId, [x, y]);
    if (mode === "divide") setSplit(x);
    if (mode === "pan") setView(state.zoom, state.x - (x - oldX) / state.zoom, state.y - (y - oldY) / state.zoom);
    if (mode === "pinch" && pointers.size === 2) {
      const now = spread(pointers);
      const [[x1, y1], [x2, y2]] = [...pointers.values()];
      zoomAt(now / Math.max(distance, 1e-3), (x1 + x2) / 2, (y1 + y2) / 2);
      distance = now;
    }
  });
  const end = (event) => {
    pointers.delete(event.pointerId);
    mode = "";
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("dblclick", (event) => zoomAt(event.shiftKey ? 0.5 : 2, ...at(event)));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomAt(Math.exp(-event.deltaY / 200), ...at(event));
  }, { passive: false });
}

function spread(pointers) {
  const [[x1, y1], [x2, y2]] = [...pointers.values()];
  return Math.hypot(x1 - x2, y1 - y2);
}

function setSplit(position) {
  state.split = clamp(position, 0, 1);
  drawSlider();
}

function setSide(side, plane) {
  state[side] = plane;
  $(side).value = String(plane);
  drawImages();
}

function swap() {
  const { left, right } = state;
  setSide("left", right);
  setSide("right", left);
}

function setErrors(on) {
  state.errors = on && source.hasReference;
  $("errors").checked = state.errors;
  $("scale").hidden = $("error-scale").hidden = !state.errors;
  $("scale-end").textContent = `≥ ${Number(state.errorScale.toPrecision(3))}`;
  drawImages();
}
