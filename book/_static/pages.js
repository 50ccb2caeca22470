// What every page of the book needs beside the theme's own scripts.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  // Their text says what they do; another name would hide it from who hears the page.
  for (const summary of document.querySelectorAll("summary[aria-label]")) summary.removeAttribute("aria-label");
  document.querySelector(".bd-sidebar-primary .current.active")?.scrollIntoView({ block: "nearest" });
});

// On paper nothing can be opened.
const opened = [];

addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll(".bd-article details:not([open])")) {
    fold.open = true;
    opened.push(fold);
  }
});

addEventListener("afterprint", () => {
  for (const fold of opened.splice(0)) fold.open = false;
});
