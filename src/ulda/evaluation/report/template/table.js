// The table of slices, and where tables are cut.

// the numbers of the methods in the order of the columns: the judged one first, since a phone shows one or two
const methodsInTable = () => source.methods.map((_, method) => method)
  .sort((a, b) => (b === source.judged) - (a === source.judged));

function buildTable() {
  const head = $("table").tHead, body = $("table").tBodies[0];
  const metric = source.metrics[state.metric];
  const methods = metric ? methodsInTable() : [];
  const columns = ["Slice", "Subject", ...methods.map((method) => source.methods[method])];
  head.replaceChildren(make("tr", {}, ...columns.map((label, column) => {
    const arrow = make("span", { className: "arrow", "aria-hidden": "true" });
    const button = make("button", { type: "button" }, label, arrow);
    button.addEventListener("click", () => sortBy(column));
    return make("th", { scope: "col", className: column > 1 ? "number" : column === 1 ? "subject" : "" }, button);
  })));
  body.replaceChildren(...source.slices.map(([subject, name], index) => {
    const choose = isShown(index) ? make("button", { type: "button", textContent: name }) : name;
    const mark = make("span", { className: "mark", "aria-hidden": "true" });
    const row = make("tr", {}, make("th", { scope: "row" }, mark, choose),
      make("td", { className: "subject", textContent: subject, title: subject }));
    row.dataset.slice = String(index);
    const values = methods.map((method) => score(method, metric, index));
    const finite = values.filter((value) => !Number.isNaN(value));
    const best = metric && finite.length > 1 ? Math[metric.higher ? "max" : "min"](...finite) : NaN;
    for (const value of values) {
      const text = shown(value, metric.digits);
      const cell = make("td", { className: "number" });
      if (value === best) {
        cell.append(make("strong", {}, make("span", { "aria-hidden": "true", textContent: "★ " }),
          make("span", { className: "unseen", textContent: "best: " }), text));
      } else cell.append(text);
      row.append(cell);
    }
    if (isShown(index)) {
      row.className = "shown";
      row.addEventListener("click", () => {
        selectSlice(index);
        goToImages();
      });
    }
    return row;
  }));
  const n = state.shown.length;
  $("table-help").textContent = "A heading sorts" +
    (n === 0 ? "." : n === source.slices.length ? "; a slice’s button shows it." :
      `; the ${n === 1 ? "slice" : `${n} slices`} with images ${n === 1 ? "is" : "are"} underlined, and the button shows ${n === 1 ? "it" : "them"}.`);
  // where no slice has a subject, there is no column to show
  const anonymous = source.slices.every(([subject]) => subject === "");
  for (const row of $("table").rows) row.cells[1].hidden = anonymous;
  sortRows();
  markRow();
}

// a slice that is chosen in the table must be seen; where the page scrolls to it, the focus goes along
function goToImages() {
  const frame = $("slider-frame").getBoundingClientRect();
  if ($("viewer").hidden || (frame.top >= 0 && frame.bottom <= window.innerHeight)) return;
  const isCalm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  $("viewer").focus({ preventScroll: true });
  $("viewer").scrollIntoView({ behavior: isCalm ? "instant" : "smooth" });
}

function sortBy(column) {
  const same = state.sort.column === column;
  // scores start with the best, texts with the first
  const metric = source.metrics[state.metric];
  const first = column > 1 && metric ? metric.higher : false;
  state.sort = { column, descending: same ? !state.sort.descending : first };
  sortRows();
}

function sortRows() {
  const { column, descending } = state.sort;
  const metric = source.metrics[state.metric];
  const text = new Intl.Collator(undefined, { numeric: true }).compare;
  const sign = descending ? -1 : 1;
  const method = methodsInTable()[column - 2];
  state.order = source.slices.map((_, index) => index).sort((a, b) => {
    if (column === 0) return sign * (a - b);
    if (column === 1) return sign * text(source.slices[a][0], source.slices[b][0]) || a - b;
    const first = score(method, metric, a), second = score(method, metric, b);
    if (Number.isNaN(first) || Number.isNaN(second)) return Number.isNaN(first) - Number.isNaN(second) || a - b;
    return (first === second ? 0 : sign * (first < second ? -1 : 1)) || a - b;
  });
  const body = $("table").tBodies[0];
  const rows = new Map([...body.rows].map((row) => [Number(row.dataset.slice), row]));
  body.append(...state.order.map((index) => rows.get(index)));
  [...$("table").tHead.rows[0].cells].forEach((cell, i) => {
    cell.setAttribute("aria-sort", i === column ? (descending ? "descending" : "ascending") : "none");
    cell.querySelector(".arrow").textContent = i === column ? (descending ? " ▼" : " ▲") : "";
  });
}

function markRow() {
  const region = $("table-region");
  for (const row of $("table").tBodies[0].rows) {
    const chosen = Number(row.dataset.slice) === state.slice;
    if (chosen) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
    row.querySelector(".mark").textContent = chosen ? "▶" : "";
    if (!chosen) continue;
    // scroll the table, never the page
    const top = row.offsetTop - $("table").tHead.offsetHeight;
    if (top < region.scrollTop) region.scrollTop = top;
    else if (row.offsetTop + row.offsetHeight > region.scrollTop + region.clientHeight) {
      region.scrollTop = row.offsetTop + row.offsetHeight - region.clientHeight;
    }
  }
}

// a shadow at the right edge of a table says that it continues there
function markCut(region) {
  region.classList.toggle("cut", region.scrollWidth - region.clientWidth - region.scrollLeft > 1);
}

function watchTables() {
  const observer = new ResizeObserver((entries) => entries.forEach(({ target }) => markCut(target.closest(".scroll"))));
  for (const region of document.querySelectorAll(".scroll")) {
    region.addEventListener("scroll", () => markCut(region));
    observer.observe(region);
    observer.observe(region.querySelector("table"));
  }
}
