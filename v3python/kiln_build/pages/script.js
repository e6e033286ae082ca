
"use strict";
// Gives the page what only a script can: tables that sort and search, and a switch of its colours. It loads nothing.
const root = document.documentElement;

function made(name, attributes, text) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

// ---- colours ----

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = document.getElementById("theme");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
}

function showTheme() {
  theme.textContent = isDark() ? "Light colours" : "Dark colours";
}

theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  showTheme();
});
dark.addEventListener("change", showTheme);
theme.hidden = false;
showTheme();

// ---- sorting ----

const words = new Intl.Collator("en", {numeric: true});

function sort(table, column, sign) {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map(row => {
    const cell = row.cells[column], key = cell.dataset.v ?? cell.textContent.trim();
    return {row, key, number: key === "" || key === "-" ? NaN : Number(key)};
  });
  const numeric = keyed.every(one => one.key === "" || one.key === "-" || !Number.isNaN(one.number));
  keyed.sort((a, b) => {
    if (!numeric) return sign * words.compare(a.key, b.key);
    if (Number.isNaN(a.number) || Number.isNaN(b.number)) return Number.isNaN(a.number) - Number.isNaN(b.number);
    return sign * (a.number - b.number);
  });
  body.append(...keyed.map(one => one.row));
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = made("button", {type: "button"}, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const next = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      heads.forEach(one => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", next);
      sort(table, column, next === "ascending" ? 1 : -1);
    });
  });
}

// ---- searching ----

function makeSearchable(table, number) {
  const rows = [...table.tBodies[0].rows];
  const place = made("div", {class: "search", role: "search"}, "");
  const label = made("label", {for: `search-${number}`}, "Search");
  const input = made("input", {type: "search", id: `search-${number}`, autocomplete: "off", spellcheck: "false"}, "");
  const found = made("span", {class: "found", role: "status"}, `${rows.length} rows`);
  let texts = null;
  input.addEventListener("input", () => {
    texts ??= rows.map(row => [...row.cells].map(cell => cell.textContent).join(" ").toLowerCase());
    const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row, place) => {
      const isShown = wanted.every(word => texts[place].includes(word));
      row.hidden = !isShown;
      count += isShown;
    });
    found.textContent = wanted.length ? `${count} of ${rows.length} rows` : `${rows.length} rows`;
  });
  place.append(label, input, found);
  table.closest(".wide").before(place);
}

document.querySelectorAll("table.rows").forEach((table, number) => {
  if (table.tBodies[0].rows.length > 1) makeSortable(table);
  if (table.tBodies[0].rows.length > 8) makeSearchable(table, number);
});

// ---- narrow screens, and the keyboard ----

const narrow = matchMedia("(max-width: 600px)");
const roles = {table: "table", thead: "rowgroup", tbody: "rowgroup", tr: "row", td: "cell"};

// Gives each cell its heading, and says that it still is a cell: blocks are no table to screen readers.
function label(table) {
  const heads = [...table.tHead.rows[0].cells].map(head => head.textContent);
  for (const element of [table, ...table.querySelectorAll("thead, tbody, tr, td")]) {
    element.setAttribute("role", roles[element.localName]);
  }
  for (const head of table.querySelectorAll("th")) {
    head.setAttribute("role", head.scope === "row" ? "rowheader" : "columnheader");
  }
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, column) => { cell.dataset.label = heads[column]; });
  }
}

function fit() {
  for (const place of document.querySelectorAll(".wide")) {
    const table = place.firstElementChild, isTable = table.matches("table.rows");
    if (isTable) table.classList.remove("stacked", "tight");
    let isTooWide = place.scrollWidth > place.clientWidth;
    if (isTable && isTooWide && !narrow.matches) {
      table.classList.add("tight");
      isTooWide = place.scrollWidth > place.clientWidth;
    }
    if (isTable && isTooWide && narrow.matches) {
      if (!table.hasAttribute("role")) label(table);
      table.classList.add("stacked");
      place.removeAttribute("tabindex");
    } else if (isTooWide) {
      place.tabIndex = 0; // so that keys scroll it
    } else {
      place.removeAttribute("tabindex");
    }
  }
}

let waiting = 0;

function fitSoon() {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(fit);
}

addEventListener("resize", fitSoon);
addEventListener("toggle", fitSoon, true); // of what a line hides until it is chosen
fit();

// ---- print ----

let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach(one => { one.open = true; });
});
addEventListener("afterprint", () => closed.forEach(one => { one.open = false; }));
