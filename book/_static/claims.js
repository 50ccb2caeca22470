// The filter of the claims page. It needs no network and keeps its state in the address, so that a choice can be linked:
// claims.html#verdict=refuted,open&topic=fit-more-into-memory&text=fsdp
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("claims-filter");
  if (!place) return;

  const plain = heading => heading.firstChild.textContent.trim();
  const topics = [...document.querySelectorAll("section > section")].filter(part => part.querySelector(":scope > h2"));
  const entries = topics.flatMap(topic => [...topic.querySelectorAll(":scope > section")].map(section => {
    const badge = section.querySelector(":scope > p > .claim-verdict");
    return {
      section,
      topic,
      verdict: [...badge.classList].find(name => name !== "claim-verdict").replace("claim-", ""),
      words: badge.textContent,
      text: section.textContent.toLowerCase(),
    };
  }));

  const form = document.createElement("form");
  form.className = "claims-filter";
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "Filter the claims");
  form.innerHTML = `
    <div class="claims-filter-verdicts" role="group" aria-label="Verdict"></div>
    <label>Topic <select><option value="">All topics</option></select></label>
    <label>Text <input type="search" placeholder="pinned, FSDP, T8" autocomplete="off" spellcheck="false"></label>
    <p><output></output> <button type="button" class="claims-filter-all">Show all</button></p>`;
  const [group, select, input] = ["div", "select", "input"].map(kind => form.querySelector(kind));
  const [output, all] = [form.querySelector("output"), form.querySelector(".claims-filter-all")];
  const buttons = new Map();
  for (const entry of entries) {
    if (buttons.has(entry.verdict)) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = `claim-verdict claim-${entry.verdict}`;
    button.textContent = entry.words;
    buttons.set(entry.verdict, button);
  }
  // In the order of the table above the filter.
  for (const badge of document.querySelectorAll("table .claim-verdict")) {
    const button = [...buttons.values()].find(one => one.className === badge.className);
    if (button) group.append(button);
  }
  for (const topic of topics) select.append(new Option(plain(topic.querySelector("h2")), topic.id));
  place.replaceWith(form);

  const chosen = () => [...buttons].filter(([, button]) => button.ariaPressed === "true").map(([verdict]) => verdict);

  function show() {
    const [verdicts, words] = [chosen(), input.value.toLowerCase().split(/\s+/).filter(Boolean)];
    let count = 0;
    for (const { section, topic, verdict, text } of entries) {
      const fits = (!verdicts.length || verdicts.includes(verdict)) && (!select.value || topic.id === select.value)
        && words.every(word => text.includes(word));
      section.hidden = !fits;
      count += fits;
    }
    for (const topic of topics) topic.hidden = !entries.some(entry => entry.topic === topic && !entry.section.hidden);
    output.textContent = `${count} of ${entries.length} claims`;
    all.hidden = count === entries.length;
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
  form.addEventListener("submit", event => event.preventDefault());
  all.addEventListener("click", () => {
    history.replaceState(null, "", "#");
    recall();
    input.focus();
  });
  window.addEventListener("hashchange", recall);
  recall();
});
