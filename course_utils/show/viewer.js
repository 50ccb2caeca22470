// All explorers. Python prepares numbers and sentences (a "state"), this draws them. In JupyterLab it is a widget of
// anywidget; in a page without a kernel it draws what `stored_view` in viewer.py has put there.

const SVG = "http://www.w3.org/2000/svg";
const WIDEST = 760;
const NARROWEST = 320;

// Small tools

// What can have the focus: JupyterLab must not take its arrow keys and Enter for commands.
const FOCUSED = ["button", "input", "select"];

/** Adds an element; below an SVG it is one of SVG. */
function add(parent, name, attributes = {}, text = undefined) {
  const drawn = name === "svg" || parent instanceof SVGElement;
  const node = drawn ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (FOCUSED.includes(name) || "tabindex" in attributes) node.setAttribute("data-lm-suppress-shortcuts", "");
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function button(parent, text, onClick, label = "") {
  const named = label ? { title: label, "aria-label": label } : {};
  const node = add(parent, "button", { type: "button", ...named }, text);
  node.addEventListener("click", onClick);
  return node;
}

/** Makes room for a drawing of this size. */
function blank(svg, width, height, words) {
  svg.replaceChildren();
  const attributes = { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words };
  for (const [key, value] of Object.entries(attributes)) svg.setAttribute(key, value);
}

function legend(parent, entries) {
  parent.replaceChildren();
  for (const [words, style, kind] of entries) {
    const entry = add(parent, "span", {}, ` ${words}`);
    const size = { width: 18, height: 12 };
    add(add(entry, "svg", size), "rect", { ...size, class: kind ?? "", fill: style });
    entry.prepend(entry.lastChild);
  }
}

/** A line of steps through points [x, y], up to x = end, as a path. */
function steps(points, end) {
  const [[x, y], ...rest] = points;
  return `M${x.toFixed(1)} ${y.toFixed(1)}${rest.map((p) => `H${p[0].toFixed(1)}V${p[1].toFixed(1)}`).join("")}H${end}`;
}

function formatBytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; count >= 1023.5 && unit < 4; unit += 1) count /= 1024;
  return `${count.toFixed(unit === 0 || count >= 99.95 ? 0 : count >= 9.995 ? 1 : 2)} ${units[unit]}`;
}

function between(low, value, high) {
  return Math.max(low, Math.min(high, value));
}

// The form above a drawing

function addInput(label, field, choose) {
  const { key, options, value } = field;
  if (field.slider) {
    const input = add(label, "input", { type: "range", min: 0, max: options.length - 1 });
    add(label, "b");
    input.addEventListener("input", () => choose(key, options[input.value][1]));
    return input;
  }
  if (options) {
    const input = add(label, "select");
    options.forEach(([words, each]) => add(input, "option", each === null ? { disabled: "" } : {}, words));
    input.addEventListener("change", () => choose(key, options[input.selectedIndex][1]));
    return input;
  }
  const type = { boolean: "checkbox", number: "number" }[typeof value] ?? "text";
  const input = add(label, "input", { type });
  for (const limit of ["min", "max", "step"]) if (limit in field) input.setAttribute(limit, field[limit]);
  const read = {
    checkbox: () => input.checked,
    number: () => between(field.min, Number(input.value) || 0, field.max),
    text: () => input.value,
  };
  const take = () => choose(key, read[type]());
  input.addEventListener("change", take);
  input.addEventListener("keydown", (event) => event.key === "Enter" && take()); // in JupyterLab it is no change
  return input;
}

/** Adds the fields; returns what puts chosen values into them. */
function addForm(parent, fields, chosen, choose) {
  const form = add(parent, "div", { class: "course-form" });
  const inputs = [];
  for (const field of fields) {
    const label = add(form, "label", { title: field.hint ?? "" }, `${field.label} `);
    const input = addInput(label, { ...field, value: chosen()[field.key] }, choose);
    input.setAttribute("aria-label", field.label);
    inputs.push([field, input]);
  }
  return () => {
    for (const [field, input] of inputs) {
      const value = chosen()[field.key];
      const is = ([, option]) => JSON.stringify(option) === JSON.stringify(value);
      const index = field.options && Math.max(0, field.options.findIndex(is));
      if (field.slider) {
        input.value = index;
        input.nextSibling.textContent = field.options[index][0];
        input.setAttribute("aria-valuetext", field.options[index][0]);
      } else if (field.options) input.selectedIndex = index;
      else if (input.type === "checkbox") input.checked = value;
      else if (input !== document.activeElement) input.value = value;
    }
  };
}

// The caching allocator, event by event

const BLOCKS = [
  ["allocated", "allocated"],
  ["freed, another stream may still use it", "awaiting"],
  ["cached", "cached"],
];
const MOST_ROWS = 12;

function allocator(body, choose) {
  let state, width, timer;
  let at = 0;
  const bar = add(body, "div", { class: "course-form" });
  button(bar, "◀", () => move(at - 1), "one event back");
  button(bar, "▶", () => move(at + 1), "one event on");
  const play = button(bar, "play", () => (timer ? stop() : start()));
  const slider = add(bar, "input", { type: "range", min: 0, step: 1, "aria-label": "event" });
  const words = add(body, "p", { class: "course-words", "aria-live": "polite" });
  legend(add(body, "div", { class: "course-legend" }), BLOCKS.map(([text, kind]) => [text, "", kind]));
  const svg = add(body, "svg");
  const numbers = add(body, "p");
  const end = add(body, "p");
  slider.addEventListener("input", () => move(Number(slider.value)));

  function stop() {
    clearInterval(timer);
    timer = undefined;
    play.textContent = "play";
  }

  function start() {
    if (at === state.events) go(0);
    play.textContent = "pause";
    timer = setInterval(() => (at < state.events && svg.isConnected ? go(at + 1) : stop()), 700);
  }

  function move(to) {
    stop();
    go(to);
  }

  function go(to) {
    at = between(0, to, state.events);
    if (at in state.frames) show();
    else choose("at", at); // a long run: Python computes the moment that is looked at
  }

  function curves(left, room) {
    const top = 24;
    const floor = top + 74;
    const x = (event) => left + (room * event) / Math.max(state.events, 1);
    const y = (size) => floor - (74 * size) / state.most;
    const line = (sizes) => steps(sizes.map((size, event) => [x(event), y(size)]), left + room);
    add(svg, "text", { x: 0, y: top - 10, class: "note" }, "reserved (line) and allocated (area) over the events");
    add(svg, "path", { d: `${line(state.allocated)}V${floor}H${left}Z`, class: "area" });
    add(svg, "path", { d: line(state.reserved), class: "reserved" });
    add(svg, "path", { d: `M${left} ${floor}h${room}`, class: "axis" });
    add(svg, "text", { x: left - 6, y: floor + 4, class: "end note" }, "0");
    if (state.limit && state.limit <= state.most) {
      add(svg, "path", { d: `M${left} ${y(state.limit)}h${room}`, class: "limit" });
      add(svg, "text", { x: left - 6, y: y(state.limit) + 4, class: "end note" }, `limit ${formatBytes(state.limit)}`);
    }
    add(svg, "path", { d: `M${x(at)} ${top - 4}V${floor + 4}`, class: "cursor" });
    return floor;
  }

  function block([offset, bytes, kind, id, requested], x, y, scale, touched) {
    const size = Math.max(bytes * scale, 0.6);
    const place = { x: x + offset * scale, y, width: size, height: 19 };
    const box = add(svg, "rect", { ...place, class: `${BLOCKS[kind][1]} ${id && id === touched ? "touched" : ""}` });
    const asked = `${id}: ${formatBytes(bytes)}, asked for ${formatBytes(requested)}, ${BLOCKS[kind][0]}`;
    add(box, "title", {}, id === null ? `${formatBytes(bytes)}, cached` : asked);
    if (id !== null && id.length * 6.6 + 6 < size) {
      add(svg, "text", { x: place.x + size / 2, y: y + 14, class: `middle on-${BLOCKS[kind][1]}` }, id);
    }
  }

  function pool({ name, bytes, rows: most }, rows, y, left, room) {
    const scale = room / bytes;
    const more = rows.length > MOST_ROWS ? `, ${rows.length - MOST_ROWS} more not drawn` : "";
    add(svg, "text", { x: left, y: y - 5, class: "note" }, `${name} pool (the width is ${formatBytes(bytes)})${more}`);
    rows.slice(0, MOST_ROWS).forEach(([label, blocks], number) => {
      const top = y + 26 * number;
      const last = Math.max(...blocks.map(([offset, size]) => offset + size));
      const filled = blocks.reduce((sum, [, size]) => sum + size, 0);
      add(svg, "text", { x: left - 6, y: top + 14, class: "end" }, label);
      if (filled < last) add(svg, "path", { d: `M${left} ${top + 9.5}h${last * scale}`, class: "gap" });
      blocks.forEach((each) => block(each, left, top, scale, state.frames[at].touched));
    });
    return y + 26 * between(1, most, MOST_ROWS) + 26;
  }

  function show() {
    const frame = state.frames[at];
    const left = width < 560 ? 130 : 180;
    const room = width - left - 10;
    const rows = state.pools.reduce((sum, each) => sum + 26 * between(1, each.rows, MOST_ROWS) + 26, 0);
    blank(svg, width, 132 + rows, state.words);
    let y = curves(left, room) + 34;
    for (const each of state.pools) y = pool(each, frame.rows[each.name], y, left, room);
    words.textContent = frame.words;
    numbers.textContent = frame.numbers;
    end.textContent = at === state.events ? state.end : "";
    slider.max = state.events;
    slider.value = at;
  }

  return (newState, newWidth) => {
    [state, width] = [newState, newWidth];
    at = Math.min(at, state.events);
    if (at in state.frames) show();
  };
}

// Cards that Python has made, one for each value of a slider

function cards(body) {
  body.setAttribute("aria-live", "polite");
  return (state) => (body.innerHTML = state.card);
}

// Putting it together

const VIEWS = { allocator, cards };
const ABSENT = "This one was not computed ahead: choose another, or simulate it in JupyterLab.";

/** What is to be drawn: Python's answer, or in a page the stored state that belongs to what is chosen. */
function stateOf(model) {
  const chosen = model.get("chosen");
  const belongs = (state) => Object.entries(state.when ?? {}).every(([key, value]) => chosen[key] === value);
  return model.get("states") ? model.get("states").find(belongs) : model.get("state");
}

function render({ model, el }) {
  el.classList.add("course-viewer");
  el.replaceChildren();
  let width = WIDEST;
  const choose = (key, value) => {
    model.set("chosen", { ...model.get("chosen"), [key]: value });
    model.save_changes();
    redraw();
  };
  const fill = addForm(el, model.get("form"), () => model.get("chosen"), choose);
  const message = add(el, "p", { role: "status" });
  const draw = VIEWS[model.get("view")](add(el, "div"), choose);
  const redraw = () => {
    const state = stateOf(model);
    fill();
    message.textContent = state ? model.get("message") ?? "" : ABSENT;
    if (state) draw(state, width, model.get("chosen"));
  };
  const measure = () => {
    const before = width;
    width = between(NARROWEST, el.clientWidth || width, WIDEST);
    if (width !== before) redraw();
  };
  for (const trait of ["state", "message", "chosen"]) model.on(`change:${trait}`, redraw);
  redraw();
  measure();
  new ResizeObserver(measure).observe(el);
}

/** Draws what stands in a page: its data behave as a widget's that Python does not answer. What can be folded stays. */
function drawStored(el) {
  const content = JSON.parse(el.querySelector("script").textContent);
  const kept = [...el.querySelectorAll(":scope > details")];
  const get = (key) => content[key];
  const set = (key, value) => (content[key] = value);
  render({ el, model: { get, set, save_changes() {}, on() {} } });
  kept.forEach((fold) => fold.removeAttribute("open"));
  el.append(...kept);
}

export default { render, drawStored };
