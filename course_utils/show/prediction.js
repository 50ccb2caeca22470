// The form of a prediction: in JupyterLab a widget that tells Python what is typed and what is locked in; in a page
// without a kernel a form that opens the answer below it.

function add(parent, name, attributes = {}, text = "") {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  // JupyterLab must not take Enter and the arrow keys for commands.
  if (["button", "input"].includes(name)) node.setAttribute("data-lm-suppress-shortcuts", "");
  node.textContent = text;
  parent.append(node);
  return node;
}

/** The number in what somebody typed: `3`, `3x`, `2,5`, `40 %`. Not a number for `1,000`, which could be 1. */
function parse(text) {
  const bare = text.replace(/[^\d.]*$/, "").trim();
  return bare === "" || /,\d{3}$/.test(bare) ? NaN : Number(bare.replace(",", "."));
}

/** What is wrong with a number, in a sentence; empty if nothing is. */
function problem(number, { low, high }) {
  if (!Number.isFinite(number)) return "Type a number, for example 2 or 0.5.";
  if (low !== null && number < low) return `Type a number of at least ${low}.`;
  return high !== null && number > high ? `Type a number of at most ${high}.` : "";
}

/** The answer in words; below 1 the number is turned around, and the unit says the other way. */
function inWords(answer, { endings }) {
  if (typeof answer === "string") return answer;
  const inverse = answer < 1 && endings.length > 1;
  return Number((inverse ? 1 / answer : answer).toPrecision(3)) + endings[inverse ? 1 : 0];
}

/** Adds question, field and button. `hear(answer, isLocked)` is told every change; null stands for what is no answer. */
function addForm(parent, content, hear) {
  const form = add(parent, "form");
  add(form, "div", { class: "question" }, content.question);
  const row = add(form, "div", { class: "field" });
  const message = add(form, "div", { role: "status" });
  let read;
  let write;
  if (content.choices.length) {
    const name = `choice-${Math.random()}`;
    const inputs = content.choices.map((choice) => {
      const label = add(row, "label");
      const input = add(label, "input", { type: "radio", name, value: choice, required: "" });
      label.append(` ${choice}`);
      return input;
    });
    read = () => inputs.find((input) => input.checked)?.value ?? null;
    write = (answer) => inputs.forEach((input) => (input.checked = input.value === answer));
  } else {
    const words = "Your prediction";
    const label = add(row, "label", {}, `${words} `);
    const input = add(label, "input", {
      inputmode: "decimal",
      autocomplete: "off",
      "aria-label": `${words}: ${content.question}`,
    });
    add(row, "span", {}, content.unit);
    read = () => {
      const number = parse(input.value);
      input.setCustomValidity(problem(number, content));
      return input.validity.valid ? number : null;
    };
    write = (answer) => (input.value = answer ?? "");
  }
  write(content.answer);
  read();
  const fields = [...row.querySelectorAll("input"), add(row, "button", {}, "Lock in my answer")];
  const change = add(row, "button", { type: "button", class: "change", hidden: "" }, "Change it");
  const setLocked = (isLocked) => {
    for (const field of fields) field.disabled = isLocked;
    fields.at(-1).hidden = isLocked;
    change.hidden = !isLocked;
  };
  const lock = (answer) => {
    // JupyterLab's notebook takes the keys again, so that Shift+Enter goes on to the next cell.
    if (form.contains(document.activeElement)) form.closest(".jp-Notebook")?.focus();
    write(answer);
    setLocked(true);
    if (content.then) message.textContent = `You said ${inWords(answer, content)}. ${content.then}`;
  };
  change.addEventListener("click", () => {
    setLocked(false);
    message.textContent = "";
    fields.find((field) => field.type !== "radio" || field.checked).focus();
    hear(read(), false);
  });
  form.addEventListener("input", () => hear(read(), false));
  // In JupyterLab, Enter submits nothing by itself.
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target === change) return;
    event.preventDefault();
    form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    tellAll(content.question, read());
  });
  hearAll(form, content.question, (answer) => {
    lock(answer);
    hear(answer, true);
  });
  if (content.locked) lock(content.answer);
  return lock;
}

/** Whoever asks the same question on this page gets the answer: it is asked where one predicts, and where one measures. */
const SAID = "course-prediction";

function tellAll(question, answer) {
  document.dispatchEvent(new CustomEvent(SAID, { detail: { question, answer } }));
}

function hearAll(node, question, hear) {
  const listen = ({ detail }) => {
    if (!node.isConnected) document.removeEventListener(SAID, listen);
    else if (detail.question === question) hear(detail.answer);
  };
  document.addEventListener(SAID, listen);
}

function render({ model, el }) {
  el.classList.add("course-predict");
  const lock = addForm(el, model.get("content"), (answer, locked) => model.send({ answer, locked }));
  model.on("change:content", () => model.get("content").locked && lock(model.get("content").answer));
}

/** Draws the guess into the card's first row, as a bar from where the measured one begins. */
function drawGuess(card, answer, { bar: { log, start, slope }, endings }) {
  const row = card.querySelector("tbody tr");
  const end = Math.min(97, Math.max(3, start + slope * (log ? Math.log(answer) : answer)));
  const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  const drawn = { class: "behind", x: `${Math.min(start, end)}%`, width: `${Math.abs(end - start)}%`, y: 8, height: 8 };
  for (const [key, value] of Object.entries(drawn)) bar.setAttribute(key, value);
  row.querySelector("svg").append(bar);
  row.lastElementChild.textContent = inWords(answer, { endings });
}

/** Puts the guess into the card's sentence and rows. */
function fillIn(card, answer, content) {
  const sentence = card.querySelector(".sentence");
  const isChoice = typeof answer === "string";
  const [, end] = content.ends.find(([until]) => (isChoice ? until === answer : answer <= (until ?? Infinity)));
  sentence.lastChild.textContent = sentence.lastChild.textContent.replace(/\.\s*$/, end);
  const said = document.createElement("b");
  said.textContent = inWords(answer, content);
  sentence.prepend("You said ", said, ". ");
  if (content.bar) drawGuess(card, answer, content);
}

/** In a page: the answer and what is below it are folded until somebody guesses, or opens it. */
function drawStored(el) {
  const data = el.querySelector(":scope > script");
  data.remove();
  const content = JSON.parse(data.textContent);
  const [question, fold] = [el.querySelector(":scope > .question"), el.querySelector(":scope > details")];
  const [, unanswered, ...below] = fold.children;
  let card = unanswered;
  const place = document.createElement("div");
  question.replaceWith(place);
  const asked = [...document.querySelectorAll(".course-predict[id]")].find((each) => each.question === content.question);
  if (asked) {
    add(place, "a", { href: `#${asked.id}` }, "Guess first");
    place.append(": the measurement is hidden until then.");
    fold.firstElementChild.textContent = "Show it";
  } else {
    el.id = `prediction-${document.querySelectorAll(".course-predict[id]").length + 1}`;
    el.question = content.question;
    addForm(place, content, () => {});
  }
  hearAll(el, content.question, (answer) => {
    // The answer stands where one was asked, and is not told again above what was measured.
    const shown = asked && below.length ? [] : [unanswered.cloneNode(true)];
    if (fold.isConnected) fold.replaceWith(...shown, ...below);
    else shown.forEach((each) => card.replaceWith(each));
    shown.forEach((each) => fillIn(each, answer, content));
    [card] = shown;
    if (asked) {
      place.remove();
    } else if (!el.closest(".jp-Notebook")) {
      // Who guessed by keyboard goes on from the answer; in JupyterLab, from the notebook.
      card.tabIndex = -1;
      card.focus();
    }
  });
}

export default { render, drawStored };
