"use strict";
// Everything on the page can be read without this script: it draws charts, and sorts and filters the tests.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent).tests;
  const details = [...document.querySelectorAll("#tests > details")];
  const rows = [...document.querySelectorAll("#verdict-table tbody tr")];

  // ------------------------------------------------------------------- plotly, from this very file, once it is needed

  function plotly() {
    if (!window.Plotly) {
      const script = document.createElement("script");
      script.textContent = document.getElementById("plotly").textContent;
      document.head.append(script);
    }
    return window.Plotly;
  }

  // The colours are the style sheet's: light, dark and on paper.
  function palette() {
    const style = getComputedStyle(document.documentElement);
    return (name) => style.getPropertyValue(`--${name}`).trim();
  }

  function axis(color, title, more) {
    return {
      title: { text: title, standoff: 8 }, color: color("ink"), gridcolor: color("line"), zeroline: false,
      fixedrange: true, automargin: true, ...more,
    };
  }

  function layout(color, height, more) {
    return {
      height, margin: { l: 8, r: 12, t: 8, b: 8 }, showlegend: false, dragmode: false,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("ink"), family: "system-ui, sans-serif", size: 12 },
      hoverlabel: { bgcolor: color("box"), bordercolor: color("line"), font: { color: color("ink") } },
      ...more,
    };
  }

  // Plotly takes some tags in a text for its own.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  // Each chart returns its traces, its layout and what its signs mean.
  const charts = {
    change(found, color) {
      const names = [...found.pairs.map((_, number) => `pair ${number + 1}`), "estimate"];
      // The band is always in sight, else nobody could tell how far a figure is from it.
      const all = [...found.pairs, found.low, found.high, found.mean, 0, ...(found.band || [])].filter(Number.isFinite);
      const low = Math.min(...all), high = Math.max(...all), room = 0.06 * (high - low || 1);
      const points = {
        type: "scatter", mode: "markers", x: found.pairs, y: names.slice(0, -1),
        marker: { size: 9, color: color("head") }, hovertemplate: "%{y}: %{x:+.2f} %<extra></extra>",
      };
      const estimate = {
        type: "scatter", mode: "markers", x: [found.mean], y: ["estimate"],
        marker: { size: 12, symbol: "diamond", color: color("ink") },
        error_x: {
          // A bound that is nowhere runs out of the picture.
          type: "data", symmetric: false, array: [(found.high ?? high + 2 * room) - found.mean],
          arrayminus: [found.mean - (found.low ?? low - 2 * room)], color: color("ink"), thickness: 2, width: 6,
        },
        hovertemplate: `estimate: %{x:+.2f} %<extra></extra>`,
      };
      const line = (x) => ({
        type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, layer: "below",
        line: { color: color("quiet"), width: 1 },
      });
      const shapes = [line(0)];
      if (found.band) {
        shapes.push({
          type: "rect", xref: "x", yref: "paper", x0: found.band[0], x1: found.band[1], y0: 0, y1: 1, layer: "below",
          fillcolor: color("band"), opacity: 0.2, line: { width: 0 },
        });
      }
      const height = 90 + 22 * names.length;
      return {
        traces: [points, estimate],
        layout: layout(color, height, {
          shapes,
          xaxis: axis(color, "change in time per call (right: slower)", {
            ticksuffix: " %", range: [low - room, high + room], tickformat: "+~g", nticks: 7,
          }),
          yaxis: axis(color, "", { autorange: "reversed", categoryarray: names, type: "category", showgrid: false }),
        }),
        legend: `${found.pairs.length ? "● one pair, " : ""}◆ the estimate with its ${found.interval}` +
          `${found.band ? ", shaded: the tolerance" : ""}`,
      };
    },

    times(found, color) {
      const mark = { base: "base", baseline: "base", head: "head", now: "head" };
      const traces = found.sides.map((side) => ({
        type: "scatter", mode: "markers", x: side.values, y: side.values.map(() => side.name),
        marker: {
          size: 10, color: color(mark[side.name]), symbol: mark[side.name] === "base" ? "circle-open" : "circle",
          line: { width: 2, color: color(mark[side.name]) }, opacity: 0.85,
        },
        text: side.values.map((_, number) => `${side.name} ${number + 1}`),
        hovertemplate: `%{text}: %{x:.4g} ${found.unit}<extra></extra>`,
      }));
      if (found.paired && found.sides.length === 2) {
        const [base, head] = found.sides;
        const x = [], y = [];
        base.values.slice(0, head.values.length).forEach((value, number) => {
          x.push(value, head.values[number], null);
          y.push(base.name, head.name, null);
        });
        traces.unshift({
          type: "scatter", mode: "lines", x, y, line: { color: color("line"), width: 2 }, hoverinfo: "skip",
        });
      }
      return {
        traces,
        layout: layout(color, 180, {
          xaxis: axis(color, `${found.unit} per call`, { nticks: 6 }),
          yaxis: axis(color, "", {
            type: "category", categoryarray: found.sides.map((side) => side.name), autorange: "reversed",
            showgrid: false, range: [-0.6, found.sides.length - 0.4],
          }),
        }),
        legend: found.paired ? "○ base, ● head; a line joins the two of a pair" : "each sign is one process",
      };
    },

    phases(found, color) {
      const widest = Math.max(...found.sides.map((side) => side.wide));
      const depth = Math.max(...found.sides.flatMap((side) => side.boxes.map((box) => box.level)));
      const gap = 0.12, tall = (1 - gap * found.sides.length) / found.sides.length;
      const traces = found.sides.map((side, place) => {
        const top = 1 - gap - place * (tall + gap);
        return {
          type: "icicle", branchvalues: "remainder", sort: false, tiling: { orientation: "v", pad: 1 },
          pathbar: { visible: false },
          domain: { x: [0, side.wide / widest], y: [Math.max(0, top - tall), top] },
          ids: side.boxes.map((box) => box.id), parents: side.boxes.map((box) => box.parent),
          labels: side.boxes.map((box) => plain(box.label)), values: side.boxes.map((box) => box.own),
          text: side.boxes.map((box) => [box.total, box.change].filter(Boolean).join(" · ")),
          texttemplate: "%{label}<br>%{text}",
          hovertext: side.boxes.map((box) => [plain(box.path), box.total,
            box.change && `adds ${box.change} to the change`].filter(Boolean).join("<br>")),
          hovertemplate: `%{hovertext}<extra>${side.name}</extra>`,
          marker: {
            colors: side.boxes.map((box) => mixed(color, box.added / found.full)),
            line: { width: 1, color: color("page") },
          },
          textfont: { color: color("ink") }, leaf: { opacity: 1 }, root: { color: "rgba(0,0,0,0)" },
        };
      });
      const annotations = found.sides.map((side, place) => ({
        text: `<b>${side.name}</b>, ${side.total}`, showarrow: false, x: 0, xanchor: "left", xref: "paper",
        y: 1 - place * (tall + gap) - gap, yanchor: "bottom", yref: "paper", font: { size: 13, color: color("ink") },
      }));
      return {
        traces,
        layout: layout(color, found.sides.length * (70 + 40 * depth), {
          annotations, margin: { l: 0, r: 0, t: 0, b: 0 }, uniformtext: { minsize: 10, mode: "hide" },
        }),
        legend: `Width is time, on one scale; a box lies within the phase above it. ${found.colours}`,
      };
    },
  };

  function mixed(color, share) {
    const [from, to] = [color("plain-fill"), color(share > 0 ? "slower-fill" : "faster-fill")].map((hex) =>
      [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16)));
    const part = Math.min(1, Math.abs(share));
    return `rgb(${from.map((value, place) => Math.round(value + part * (to[place] - value))).join(",")})`;
  }

  // ------------------------------------------------------------------- drawing

  function draw(test) {
    const color = palette();
    for (const element of test.querySelectorAll("[data-chart]")) {
      const made = charts[element.dataset.chart](data[element.dataset.test][element.dataset.chart], color);
      element.previousElementSibling.textContent = made.legend;
      plotly().react(element, made.traces, made.layout, { displayModeBar: false, responsive: true });
      if (!element.dataset.drawn) element.on("plotly_icicleclick", () => false); // nothing moves
      element.dataset.drawn = "yes";
    }
    // A thing of plotly's to measure texts with, out of sight.
    document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true");
  }

  const redraw = () => details.filter((test) => test.open).forEach(draw);
  details.forEach((test) => test.addEventListener("toggle", () => test.open && draw(test)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);

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
    const link = event.target.closest("#verdict-table a");
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
      return cell.dataset.key === undefined ? cell.textContent : Number(cell.dataset.key);
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
    for (const row of rows) {
      const test = details[row.dataset.test];
      const name = test.querySelector("h3").textContent.toLowerCase();
      row.hidden = test.hidden = !(statuses.has(row.dataset.status) && name.includes(wanted));
      shown += !row.hidden;
    }
    const told = shown === rows.length ? "" : `${shown} of ${rows.length} tests shown`;
    document.getElementById("shown").textContent = told;
  }
  field.addEventListener("input", filter);
  buttons.forEach((button) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    filter();
  }));
  controls.hidden = false;

  // The first test is the one that wants attention most.
  if (location.hash) openTarget();
  else if (details.length) details[0].open = true;
})();
