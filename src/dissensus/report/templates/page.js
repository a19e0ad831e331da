"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, text) => { const node = document.createElement(tag); node.textContent = text; return node; };
  document.documentElement.classList.add("js");

  // one score and one run at a time
  const controls = document.querySelector(".controls");
  if (controls) {
    const score = document.getElementById("choose-score"), run = document.getElementById("choose-run");
    const show = () => {
      for (const panel of all(".by-score")) { panel.hidden = panel.dataset.score !== score.value; panel.open = !panel.hidden; }
      for (const panel of all(".by-run")) panel.hidden = panel.dataset.run !== run.value;
    };
    const printed = () => { document.querySelector(".printed").textContent = `Charts and examples of ${run.selectedOptions[0].text}, by ${score.value}; others can be chosen on the screen.`; };
    addEventListener("beforeprint", printed);
    score.addEventListener("change", show);
    run.addEventListener("change", show);
    controls.addEventListener("submit", (event) => event.preventDefault());
    controls.hidden = controls.classList.contains("nothing");
    show();
  }

  // tables sort by their headers: numbers from the largest, names from A; what is missing comes last
  const key = (row, column) => {
    const cell = row.cells[column];
    if (cell.tagName === "TH") return cell.textContent.trim();
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  };
  const sort = (table, header, column) => {
    const body = table.tBodies[0], rows = [...body.rows];
    const numbers = rows.some((row) => typeof key(row, column) === "number");
    const before = header.getAttribute("aria-sort");
    const turn = before ? (before === "ascending" ? "descending" : "ascending") : (numbers ? "descending" : "ascending");
    const sign = turn === "ascending" ? 1 : -1;
    rows.sort((a, b) => {
      const x = key(a, column), y = key(b, column);
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (numbers ? x - y : x.localeCompare(y, undefined, { numeric: true }));
    });
    body.append(...rows);
    for (const other of table.tHead.rows[table.tHead.rows.length - 1].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", turn);
  };
  for (const table of all("table.sortable")) {
    const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
    [...heads].forEach((header, column) => {
      const button = make("button", header.textContent);
      button.type = "button";
      button.title = "Sort";
      button.addEventListener("click", () => sort(table, header, column));
      header.replaceChildren(button);
    });
  }

  // tables that are wider than the page say so, until they are scrolled to their end
  const edges = (scroll) => scroll.classList.toggle("cut", scroll.scrollWidth - scroll.clientWidth - scroll.scrollLeft > 4);
  const watch = new ResizeObserver((entries) => { for (const entry of entries) edges(entry.target); });
  for (const scroll of all(".scroll.wide")) {
    watch.observe(scroll);
    scroll.addEventListener("scroll", () => edges(scroll), { passive: true });
  }

  // an image larger, with each member's vote
  const viewer = document.getElementById("viewer");
  let current = null;
  const open = (tile) => {
    current = tile;
    const more = tile.querySelector(".more"), words = viewer.querySelector(".words");
    viewer.querySelector("h2").textContent = more.dataset.place;
    viewer.querySelector(".large").replaceChildren(tile.querySelector(".thumb").cloneNode(true));
    words.replaceChildren(...all(".said", tile).map((line) => { const p = make("p", ""); p.append(...[...line.childNodes].map((n) => n.cloneNode(true))); return p; }));
    const members = JSON.parse(more.dataset.members);
    if (members.length) {
      const list = document.createElement("ol");
      list.append(...members.map((vote) => make("li", vote)));
      words.append(make("p", "Each member's vote:"), list);
    }
    if (!viewer.open) viewer.showModal();
  };
  const step = (by) => {
    const shown = all(".tile").filter((tile) => tile.offsetParent);
    open(shown[(shown.indexOf(current) + by + shown.length) % shown.length]);
  };
  for (const tile of all(".tile")) tile.addEventListener("click", () => open(tile));
  for (const button of all(".step", viewer)) button.addEventListener("click", () => step(Number(button.dataset.step)));
  viewer.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight") step(1);
    if (event.key === "ArrowLeft") step(-1);
  });
  viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });
  viewer.addEventListener("close", () => { if (current) current.focus(); });

  // paper has no use for closed details
  let opened = [];
  addEventListener("beforeprint", () => { opened = all("details.data:not([open])").filter((one) => one.offsetParent); for (const one of opened) one.open = true; });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
})();
