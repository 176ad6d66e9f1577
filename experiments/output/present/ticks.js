"use strict";
// Counts what is ticked in each list. Nothing is stored.
for (const list of document.querySelectorAll(".checklist")) {
  const boxes = list.querySelectorAll("input");
  const count = list.querySelector("output");
  const say = () => {
    const ticked = Array.from(boxes).filter((box) => box.checked).length;
    count.textContent = `${ticked} of ${boxes.length} ticked`;
  };
  list.addEventListener("change", say);
  say();
}
