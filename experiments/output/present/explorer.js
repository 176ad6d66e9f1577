"use strict";
// Shows the computed point that the sliders name: texts from the page, no arithmetic on figures.
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const sliders = data.axes.map((axis) => document.getElementById(`slider-${axis.name}`));
  const body = document.getElementById("point-rows");
  const about = document.getElementById("point-about");
  const cell = (tag, text) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (tag === "th") made.scope = "row";
    return made;
  };
  const show = () => {
    const chosen = sliders.map((slider) => Number(slider.value));
    let index = 0;
    data.axes.forEach((axis, place) => {
      const text = axis.values[chosen[place]];
      index = index * axis.values.length + chosen[place];
      sliders[place].setAttribute("aria-valuetext", text);
      document.getElementById(`value-${axis.name}`).textContent = text;
    });
    const point = data.points[index];
    about.textContent = point.about;
    body.replaceChildren(...point.rows.map((row) => {
      const line = document.createElement("tr");
      line.append(...row.map((text, column) => cell(column ? "td" : "th", text)));
      return line;
    }));
  };
  sliders.forEach((slider) => slider.addEventListener("input", show));
  document.getElementById("planned").addEventListener("click", () => {
    sliders.forEach((slider, place) => { slider.value = String(data.axes[place].planned); });
    show();
  });
  show();
}
