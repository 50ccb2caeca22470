// Starts reveal.js, and makes the type of a slide smaller until nothing of it is cut off.
(() => {
  const SMALLEST_PX = 15;

  const tooLarge = (slide) =>
    slide.scrollHeight > slide.clientHeight + 1 ||
    slide.scrollWidth > slide.clientWidth + 1 ||
    [...slide.querySelectorAll("pre")].some((part) => part.scrollWidth > part.clientWidth + 1) ||
    [...slide.querySelectorAll("table")].some((part) => part.offsetWidth > part.parentElement.clientWidth + 1);

  const fit = (slide) => {
    if (!slide || slide.dataset.fitted) return;
    let size = parseFloat(getComputedStyle(slide).fontSize);
    while (tooLarge(slide) && size > SMALLEST_PX) {
      size -= 1;
      slide.style.fontSize = `${size}px`;
    }
    slide.classList.toggle("fits", !tooLarge(slide));
    slide.dataset.fitted = size;
  };

  Reveal.initialize({
    width: 1280,
    height: 720,
    margin: 0.04,
    center: false,
    hash: true,
    slideNumber: "c/t",
    transition: "none",
    keyboardCondition: (event) => !["INPUT", "SELECT", "BUTTON", "TEXTAREA"].includes(event.target.tagName),
  });
  const now = () => fit(Reveal.getCurrentSlide());
  Reveal.on("ready", now);
  Reveal.on("slidechanged", now);
})();
