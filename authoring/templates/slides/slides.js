// Starts reveal.js, and makes a slide smaller until nothing of it is cut off.
(() => {
  const SMALLEST_PX = 18;
  const SMALLEST_FIGURE_PX = 240;
  const SMALLEST_PERCENT = 40;

  const tooLarge = (slide) =>
    slide.scrollHeight > slide.clientHeight + 1 ||
    slide.scrollWidth > slide.clientWidth + 1 ||
    [...slide.querySelectorAll("pre")].some((part) => part.scrollWidth > part.clientWidth + 1) ||
    [...slide.querySelectorAll("table")].some((part) => part.offsetWidth > part.parentElement.clientWidth + 1);

  // Figures take the height that text and tables leave.
  const fill = (slide) => {
    const figures = [...slide.querySelectorAll(".jp-OutputArea img")];
    if (!figures.length) return;
    figures.forEach((figure) => (figure.style.height = "0"));
    const scale = Reveal.getScale() * (slide.firstElementChild.style.zoom || 1);
    const bottom = slide.firstElementChild.getBoundingClientRect().bottom - slide.getBoundingClientRect().top;
    const left = (slide.clientHeight - bottom / Reveal.getScale() - 8) * (Reveal.getScale() / scale);
    figures.forEach((figure) => (figure.style.height = `${Math.max(left / figures.length, SMALLEST_FIGURE_PX)}px`));
  };

  // Smaller type first; then all of it smaller, pictures and tables too.
  const fit = (slide) => {
    if (!slide || slide.dataset.fitted) return;
    const whole = document.createElement("div");
    whole.append(...slide.childNodes);
    slide.append(whole);
    fill(slide);
    let size = parseFloat(getComputedStyle(slide).fontSize);
    while (tooLarge(slide) && size > SMALLEST_PX) {
      size -= 1;
      slide.style.fontSize = `${size}px`;
      fill(slide);
    }
    slide.dataset.fitted = size;
    for (let percent = 95; tooLarge(slide) && percent >= SMALLEST_PERCENT; percent -= 5) {
      whole.style.zoom = percent / 100;
      fill(slide);
    }
    slide.classList.toggle("fits", !tooLarge(slide));
  };

  Reveal.initialize({
    width: 1280,
    height: 720,
    margin: 0.04,
    center: false,
    hash: true,
    slideNumber: "c/t",
    controls: false, // arrows would cover the end of a slide; keys, Space and swiping do without
    transition: "none",
    keyboardCondition: (event) => !["INPUT", "SELECT", "BUTTON", "TEXTAREA"].includes(event.target.tagName),
  });
  Reveal.addKeyBinding({ keyCode: 83, key: "S", description: "Show or hide the speaker's notes" }, () => {
    Reveal.configure({ showNotes: !Reveal.getConfig().showNotes });
    Reveal.layout(); // they take their room from the slide
  });
  const now = () => fit(Reveal.getCurrentSlide());
  Reveal.on("ready", now);
  Reveal.on("slidechanged", now);
})();
