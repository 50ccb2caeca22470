() => {
  // What stands in too little contrast to what is really behind it (WCAG AA: 4.5).
  const channels = colour => colour.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const c = channels(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0.5) return c;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const kinds = ["p", "td", "th", "caption", "dt", "dd"].map(kind => `article ${kind}`).join(", ");
  for (const e of document.querySelectorAll(kinds)) {
    if (!e.textContent.trim() || !e.checkVisibility()) continue;
    const [a, b] = [luminance(channels(getComputedStyle(e).color)), luminance(behind(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) poor.push([e.tagName, e.textContent.trim().slice(0, 40), contrast.toFixed(2)]);
  }
  return poor;
}
