"use strict";
// Everything on the page can be read without this script: it sorts and filters the tests, and opens the one looked for.
(() => {
  const details = [...document.querySelectorAll("#tests > details")];
  const rows = [...document.querySelectorAll("#verdict-table tbody tr")];

  function openTarget() {
    const target = document.getElementById(location.hash.slice(1));
    if (target && target.matches("details")) {
      target.hidden = false;
      target.open = true;
      target.scrollIntoView();
      target.querySelector("summary").focus();
    }
  }
  addEventListener("hashchange", openTarget);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#test-']");
    if (link && link.hash === location.hash) openTarget(); // a second click changes no hash
  });

  // ------------------------------------------------------------------- sorting and filtering

  const controls = document.querySelector(".controls");
  if (!controls) return;
  const body = document.querySelector("#verdict-table tbody");
  const heads = [...document.querySelectorAll("#verdict-table thead th")];

  function sortBy(place) {
    const head = heads[place];
    const rising = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const key = (row) => {
      const cell = row.cells[place];
      return cell.dataset.k === undefined ? cell.textContent : Number(cell.dataset.k);
    };
    const compare = (a, b) => {
      const [left, right] = [key(a), key(b)];
      const empty = (left === "") - (right === ""); // what has no figure stays last
      if (empty) return empty;
      const numbers = typeof left === "number" && typeof right === "number";
      const order = numbers ? left - right : String(left).localeCompare(String(right));
      return rising ? order : -order;
    };
    body.append(...[...rows].sort(compare));
  }
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortBy(place));
    head.append(button);
  });

  const field = document.getElementById("filter");
  const buttons = [...controls.querySelectorAll("button")];
  function filter() {
    const wanted = field.value.toLowerCase();
    const statuses = new Set(buttons.filter((b) => b.getAttribute("aria-pressed") === "true").map((b) => b.value));
    let shown = 0;
    for (const [place, row] of rows.entries()) {
      const test = details[place]; // rows and tests stand in the same order in the file
      const status = test.querySelector("summary b").textContent;
      const name = test.querySelector("h3").textContent.toLowerCase();
      row.hidden = test.hidden = !(statuses.has(status) && name.includes(wanted));
      shown += !row.hidden;
    }
    const count = shown === rows.length ? "" : `${shown} of ${rows.length} tests shown`;
    document.getElementById("shown").textContent = count;
  }
  field.addEventListener("input", filter);
  buttons.forEach((button) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    filter();
  }));
  controls.hidden = false;

  // Of many tests those that are the same are folded away: their button shows them.
  const same = buttons.find((button) => button.value === "SAME");
  if (same && buttons.length > 1 && rows.length > 50) same.click();
  if (location.hash) openTarget();
})();
