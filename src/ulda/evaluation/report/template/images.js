// From the pictures in the page to what the canvases show.

async function decode(index) {
  const key = `${state.source}/${index}`;
  if (decoded.has(key)) return decoded.get(key);
  const picture = new Image();
  picture.src = `data:${source.mime};base64,${source.pictures[index]}`;
  await picture.decode();
  const canvas = make("canvas", { width: picture.naturalWidth, height: picture.naturalHeight });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(picture, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
  const size = source.size[0] * source.size[1];
  const perTile = source.channels ? source.channels.length : 1;
  const found = [];
  // the last plane is k-space
  for (let plane = 0; plane <= source.planes.length; plane++) {
    const values = new Uint8Array(size);
    const start = 4 * size * Math.floor(plane / perTile) + (source.channels ? source.channels[plane % perTile] : 0);
    for (let i = 0; i < size; i++) values[i] = pixels[start + 4 * i];
    found.push(values);
  }
  decoded.set(key, found);
  if (decoded.size > CACHED_SLICES) decoded.delete(decoded.keys().next().value);
  return found;
}

// some browsers answer with noise when a page reads its own canvas
function readsBackTruly() {
  const context = make("canvas", { width: 2, height: 1 }).getContext("2d");
  context.fillStyle = "rgb(17, 101, 203)";
  context.fillRect(0, 0, 2, 1);
  return [...context.getImageData(0, 0, 2, 1).data].join() === "17,101,203,255,17,101,203,255";
}

function showsError(plane) {
  return state.errors && source.hasReference && source.planes[plane] !== null;
}

// colours as the four bytes of a pixel
const word = ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red;
const COLOURS = Uint32Array.from(DATA.colours, word);
const GREYS = Uint32Array.from({ length: 256 }, (_, value) => word([value, value, value]));

// an image of one plane in its own size: grey, or its error in colours
function pictureOf(plane) {
  const error = showsError(plane);
  const key = error ? `${plane}/${state.errorScale}` : `${plane}`;
  if (painted.has(key)) return painted.get(key);
  const [height, width] = source.size;
  const pixels = new ImageData(width, height);
  const words = new Uint32Array(pixels.data.buffer);
  const values = planes[plane], reference = planes[0];
  const white = source.whites[state.slice];
  for (let i = 0; i < values.length; i++) {
    if (error) {
      const relative = white * Math.abs(values[i] - reference[i]) / 255 / state.errorScale;
      words[i] = COLOURS[Math.min(255, Math.round(255 * relative))];
    } else words[i] = GREYS[Math.min(255, Math.round(white * values[i]))];
  }
  const canvas = make("canvas", { width, height });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  painted.set(key, canvas);
  return canvas;
}

function fit(canvas, size = source.size) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  const height = Math.max(1, Math.round((canvas.clientWidth * ratio * size[0]) / size[1]));
  if (canvas.width !== width || canvas.height !== height) {
    canvas.style.aspectRatio = `${size[1]} / ${size[0]}`;
    canvas.width = width;
    canvas.height = height;
  }
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  return context;
}

// draw the part of a picture that the common view shows
function drawView(context, picture, canvas) {
  const [height, width] = source.size;
  const part = 1 / state.zoom;
  context.drawImage(
    picture, (state.x - part / 2) * width, (state.y - part / 2) * height, part * width, part * height,
    0, 0, canvas.width, canvas.height,
  );
}

function drawImages() {
  if (!planes) return;
  drawSlider();
  drawPanes();
  for (const canvas of canvases()) {
    canvas.style.touchAction = state.zoom > 1 ? "none" : canvas.id === "slider" ? "pan-y" : "manipulation";
  }
  $("zoom").textContent = `${Number(state.zoom.toFixed(1))}×`;
}

function drawSlider() {
  if (!planes) return;
  const slider = $("slider");
  const context = fit(slider);
  drawView(context, pictureOf(state.right), slider);
  context.save();
  context.beginPath();
  context.rect(0, 0, Math.round(state.split * slider.width), slider.height);
  context.clip();
  drawView(context, pictureOf(state.left), slider);
  context.restore();
  const [left, right, percent] = [planeName(state.left), planeName(state.right), Math.round(100 * state.split)];
  $("divider").style.left = `${100 * state.split}%`;
  $("split").value = String(percent);
  $("split").setAttribute("aria-valuetext", `${percent} % ${left}, the rest ${right}`);
  const what = state.errors ? "Error maps" : "Images";
  slider.setAttribute("aria-label", `${what} of ${sliceLabel(state.slice)}: ${left} left of the divider, ${right} right of it`);
}

function drawPanes() {
  for (const pane of panes) {
    drawView(fit(pane.canvas), pictureOf(pane.plane), pane.canvas);
    const numbers = scoreTexts(pane.plane);
    pane.score.replaceChildren(...numbers.map((text) => make("div", { textContent: text })));
    const what = showsError(pane.plane) ? "Error map" : "Image";
    pane.canvas.setAttribute("aria-label", [`${what} of ${planeName(pane.plane)}`, ...numbers].join(", "));
    pane.buttons[0].setAttribute("aria-pressed", String(pane.plane === state.left));
    pane.buttons[1].setAttribute("aria-pressed", String(pane.plane === state.right));
  }
}

const canvases = () => [$("slider"), ...panes.map((pane) => pane.canvas)];

// the mask of the slice that is shown; where none is, that of all slices
function shownMask() {
  const indices = new Set((state.slice < 0 ? source.slices : [source.slices[state.slice]]).map(([, , mask]) => mask));
  const [index] = indices;
  return indices.size === 1 && index !== null ? source.masks[index] : null;
}

function drawSampling() {
  const mask = shownMask();
  const hasImages = source.pictures.length > 0;
  $("sampling").hidden = !hasImages && !mask;
  $("mask").parentElement.hidden = !mask;
  $("kspace").parentElement.hidden = !hasImages;
  const lines = new Set(mask ? mask.sampled : []);
  const direction = source.phaseAxis === -2 ? "rows" : "columns";
  $("sampling-text").textContent = mask
    ? `${lines.size} of ${mask.nLines} lines (${((100 * lines.size) / mask.nLines).toFixed(1)} %) were measured; ` +
      `the lines are ${direction} of k-space, its origin is in the middle.`
    : "Which lines were measured is not on record.";
  if (mask) {
    $("mask").setAttribute("aria-label", `Mask: ${lines.size} of ${mask.nLines} ${direction} sampled`);
    // without an image as many pixels as lines, both ways
    drawPixels($("mask"), hasImages ? source.size : [mask.nLines, mask.nLines],
      (_, line) => (lines.has(line) ? [255, 255, 255, 255] : [0, 0, 0, 255]));
  }
  if (planes) drawKspace(mask, lines);
}

// what was not measured is blue; what was is grey
function drawKspace(mask, lines) {
  const spectrum = planes[planes.length - 1];
  drawPixels($("kspace"), source.size, (i, line) => {
    const value = spectrum[i];
    return !mask || lines.has(line) ? [value, value, value, 255] : [0.4 * value, 0.7 * value, 0.72 * value + 70, 255];
  });
  const of = source.hasReference ? "the reference's" : `the ${planeName(source.planes.length - 1)}'s`;
  const what = source.hasKspace ? "Magnitude of the k-space that the methods started from" :
    `Fourier transform of ${of} magnitude, without the phase that the measurements have`;
  $("kspace-caption").textContent = `${what}; logarithmic over ${source.kspaceRange} dB` +
    (mask ? "; the lines that were not measured are blue" : "");
  $("kspace").setAttribute("aria-label", $("kspace-caption").textContent);
}

// fill a canvas with the colour of each pixel, by its number and its line of k-space
function drawPixels(canvas, [height, width], colour) {
  const pixels = new ImageData(width, height);
  for (let i = 0; i < height * width; i++) {
    pixels.data.set(colour(i, source.phaseAxis === -2 ? Math.floor(i / width) : i % width), 4 * i);
  }
  const small = make("canvas", { width, height });
  small.getContext("2d").putImageData(pixels, 0, 0);
  fit(canvas, [height, width]).drawImage(small, 0, 0, canvas.width, canvas.height);
}
