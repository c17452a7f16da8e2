// Draws the figures that the page holds as JSON. A string that begins with -- is the name of a colour in the
// page's style sheet, so the same figure is drawn for a light page, a dark one and paper.
"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = { displayModeBar: false }; // drag to zoom, double click to be back

  const colored = (value, style) => {
    if (typeof value === "string") return (value.startsWith("--") && style.getPropertyValue(value).trim()) || value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value.slice() : value.map((v) => colored(v, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, v]) => [key, colored(v, style)]));
  };

  const refuse = (place, error) => {
    place.textContent = `This figure could not be drawn: ${error.message || error}`;
    place.dataset.failed = "yes";
    console.error(error);
  };

  const draw = (place) => {
    if (place.closest("details:not([open])")) return; // folded: it has no width yet
    const { data, layout } = figures[place.id];
    const style = getComputedStyle(root);
    const themed = colored(layout, style);
    themed.font.family = getComputedStyle(document.body).fontFamily;
    // Said, not found out: on the way to paper there is no time for plotly to look again.
    themed.width = place.clientWidth;
    themed.height = place.clientHeight;
    try {
      Plotly.react(place, colored(data, style), themed, config).catch((error) => refuse(place, error));
    } catch (error) {
      refuse(place, error);
    }
  };

  const places = Object.keys(figures).map((key) => document.getElementById(key));
  const all = () => places.forEach(draw);
  all();
  document.querySelectorAll("details").forEach((part) => {
    part.addEventListener("toggle", () => part.open && part.querySelectorAll(".plot").forEach(draw));
  });
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(all);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  let opened = [];
  addEventListener("beforeprint", () => {
    root.classList.add("paper");
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((part) => (part.open = true));
    all();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("paper");
    opened.forEach((part) => (part.open = false));
    all();
  });
})();
