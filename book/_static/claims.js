// The filter of the claims page. It needs no network and keeps its state in the address, so that a choice can be linked:
// claims.html#verdict=no,open&topic=Keep the device fed&text=pinned
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("claims-filter");
  if (!place) return;

  const rows = [...document.querySelectorAll(".claims tbody tr")].map(row => ({
    row,
    verdict: row.querySelector(".claim-verdict").className.split("claim-").pop(),
    topic: row.querySelector("span[title]").title,
    text: row.textContent.toLowerCase(),
  }));

  const form = document.createElement("form");
  form.className = "claims-filter";
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "Filter the claims");
  form.innerHTML = `
    <div role="group" aria-label="Verdict"></div>
    <select aria-label="Part of the course"><option value="">All parts</option></select>
    <input type="search" aria-label="Text" placeholder="pinned, FSDP, cudaMalloc" autocomplete="off" spellcheck="false">
    <output></output> <button type="button">Show all</button>`;
  const [group, select, input, output] = ["div", "select", "input", "output"].map(kind => form.querySelector(kind));
  const all = form.querySelector(":scope > button");
  // The signs above the table become buttons.
  const buttons = new Map([...place.querySelectorAll(".claim-verdict")].map(badge => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = badge.className;
    button.textContent = badge.textContent + badge.nextSibling.textContent.replace(" ·", "");
    group.append(button);
    return [badge.className.split("claim-").pop(), button];
  }));
  for (const topic of new Set(rows.map(each => each.topic))) select.append(new Option(topic));
  place.replaceWith(form);

  const chosen = () => [...buttons].filter(([, button]) => button.ariaPressed === "true").map(([verdict]) => verdict);

  function show() {
    const [verdicts, words] = [chosen(), input.value.toLowerCase().split(/\s+/).filter(Boolean)];
    for (const { row, verdict, topic, text } of rows) {
      row.hidden = (verdicts.length && !verdicts.includes(verdict)) || (select.value && topic !== select.value)
        || !words.every(word => text.includes(word));
    }
    const count = rows.filter(each => !each.row.hidden).length;
    output.textContent = `${count} of ${rows.length}`;
    all.hidden = count === rows.length;
  }

  function remember() {
    const state = new URLSearchParams();
    if (chosen().length) state.set("verdict", chosen().join(","));
    if (select.value) state.set("topic", select.value);
    if (input.value) state.set("text", input.value);
    history.replaceState(null, "", `#${state.toString().replaceAll("%2C", ",")}`);
  }

  function recall() {
    const hash = location.hash.slice(1);
    // A plain anchor asks for one claim: everything is shown, so that it cannot be hidden.
    const state = new URLSearchParams(hash.includes("=") ? hash : "");
    const verdicts = (state.get("verdict") || "").split(",");
    for (const [verdict, button] of buttons) button.ariaPressed = String(verdicts.includes(verdict));
    select.value = state.get("topic") || "";
    if (select.selectedIndex < 0) select.value = "";
    input.value = state.get("text") || "";
    show();
    if (hash) (hash.includes("=") ? form : document.getElementById(hash))?.scrollIntoView();
  }

  for (const button of buttons.values()) {
    button.addEventListener("click", () => {
      button.ariaPressed = String(button.ariaPressed !== "true");
      show();
      remember();
    });
  }
  for (const field of [select, input]) field.addEventListener("input", () => { show(); remember(); });
  all.addEventListener("click", () => {
    history.replaceState(null, "", "#");
    recall();
    input.focus();  // the button is gone
  });
  form.addEventListener("submit", event => event.preventDefault());
  window.addEventListener("hashchange", recall);
  recall();
});
