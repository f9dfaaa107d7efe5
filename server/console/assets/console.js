// SPDX-License-Identifier: Apache-2.0
"use strict";
(function () {
  const box = document.getElementById("dialog-box");
  const inner = document.getElementById("dialog");

  // Updates of live parts replace only what differs, so that the focus, the selection and open details are retained.

  function same(a, b) {
    return a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.nodeType !== 1 || (a.id === b.id && a.dataset.key === b.dataset.key));
  }

  function patchAttributes(from, to) {
    for (const a of Array.from(from.attributes)) {
      const own = (a.name === "open" && from.nodeName === "DETAILS") || a.name === "data-label";
      if (!to.hasAttribute(a.name) && !own && !(a.name === "class" && from.classList.contains("chart"))) from.removeAttribute(a.name);
    }
    for (const a of Array.from(to.attributes)) {
      if (a.name === "class" && from.classList.contains("chart")) continue;
      if (from.getAttribute(a.name) !== a.value) from.setAttribute(a.name, a.value);
    }
  }

  function patch(from, to) {
    if (from.nodeType !== 1) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    patchAttributes(from, to);
    if (from.classList.contains("chart")) { // draw creates its content
      draw(from);
      return;
    }
    if (from === document.activeElement && /^(INPUT|TEXTAREA|SELECT)$/.test(from.nodeName)) return;
    patchChildren(from, to);
  }

  function keyOf(n) {
    return n.nodeType === 1 ? n.dataset.key || n.id || "" : "";
  }

  function patchChildren(from, to) {
    const keyed = new Map();
    for (const c of Array.from(from.childNodes)) if (keyOf(c)) keyed.set(keyOf(c), c);
    let at = from.firstChild;
    for (const next of Array.from(to.childNodes)) {
      const known = keyOf(next) && keyed.get(keyOf(next));
      if (known && known.nodeName === next.nodeName) {
        if (known !== at) from.insertBefore(known, at); else at = at.nextSibling;
        patch(known, next);
      } else if (at && !keyOf(at) && same(at, next)) {
        const own = at;
        at = at.nextSibling;
        patch(own, next);
      } else {
        from.insertBefore(next, at);
      }
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      from.removeChild(gone);
    }
  }

  htmx.defineExtension("patch", {
    isInlineSwap: function (style) { return style === "patch"; },
    handleSwap: function (style, target, fragment) {
      if (style !== "patch") return false;
      patchChildren(target, fragment);
      relabel(target);
      return [target];
    },
  });

  // Tables: on a narrow screen, each row is a block, and each cell contains the name of its column.

  function relabel(root) {
    root.querySelectorAll(".table table").forEach(function (t) {
      if (!t.tHead) return;
      const names = Array.from(t.tHead.rows[0].cells).map(function (c) { return c.textContent.trim(); });
      Array.from(t.tBodies).forEach(function (b) {
        Array.from(b.rows).forEach(function (r) {
          Array.from(r.cells).forEach(function (c, i) { if (c.dataset.label !== names[i]) c.dataset.label = names[i] || ""; });
        });
      });
    });
    document.body.classList.add("labelled");
  }

  // Charts: <div class="chart" data-chart='{"kind":"bars"|"lines", ...}'>

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  const scale = { bytes: ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], number: ["", "k", "M", "G", "T"], count: ["", "k", "M", "G", "T"] };

  // Times are displayed in UTC in ISO 8601 format.
  function iso(seconds) { return new Date(seconds * 1000).toISOString().replace(/\.\d+Z$/, "Z"); }
  function isoTime(seconds) { return iso(seconds).slice(11, 19); }

  function age(v) {
    if (v === null || v === undefined) return "–";
    for (const one of [[86400, " d"], [3600, " h"], [60, " min"]]) {
      if (v >= one[0]) return (v / one[0]).toFixed(v % one[0] ? 1 : 0) + one[1];
    }
    return v.toFixed(v % 1 ? 1 : 0) + " s";
  }

  function human(unit) {
    if (unit === "seconds") return age;
    const units = scale[unit] || scale.number;
    const step = unit === "bytes" ? 1024 : 1000;
    return function (v) {
      if (v === null || v === undefined) return "–";
      let i = 0;
      while (Math.abs(v) >= step && i < units.length - 1) { v /= step; i++; }
      return (Math.abs(v) >= 100 || v === Math.trunc(v) ? v.toFixed(0) : v.toFixed(1)) + (units[i] ? " " + units[i] : "");
    };
  }

  const whole = [1, 2, 5].concat(...Array.from({ length: 12 }, function (_, i) { return [1, 2, 5].map(function (n) { return n * Math.pow(10, i + 1); }); }));

  const spans = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200].concat([1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].map(function (n) { return n * 86400; }));

  function draw(el) {
    const raw = el.dataset.chart;
    const width = Math.max(200, Math.floor(el.clientWidth));
    const theme = document.documentElement.dataset.theme || "";
    if (el.drawn === raw && el.drawnWidth === width && el.drawnTheme === theme) return;
    const c = JSON.parse(raw);
    const data = [c.x].concat(c.series.map(function (s) { return s.values; }));
    if (el.plot && el.drawnWidth === width && el.drawnTheme === theme && el.drawnSeries === c.series.length && c.kind === "lines") {
      el.drawn = raw;
      el.plot.setData(data);
      return;
    }
    if (el.plot) el.plot.destroy();
    el.textContent = "";
    const format = human(c.unit);
    const ink = colour("--muted"), line = colour("--line");
    const bars = c.kind === "bars";
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    const o = {
      width: width, height: c.height || 220, cursor: { y: false, points: { size: 6 } }, legend: { live: true },
      scales: { x: { time: !bars, range: bars ? function () { return [-0.6, c.x.length - 0.4]; } : undefined }, y: { range: function (u, min, max) { return [Math.min(0, min || 0), max > 0 ? max * 1.08 : 1]; } } },
      axes: [
        Object.assign({}, axis, bars ? { grid: { show: false }, splits: function () { return c.x; }, values: function (u, s) { return s.map(function (i) { return c.labels[i]; }); }, rotate: width < 560 || c.x.length > 14 ? -50 : 0, size: width < 560 || c.x.length > 14 ? 62 : 34 } : { space: 70, values: function (u, s) { return s.map(isoTime); } }),
        Object.assign({}, axis, bars || c.unit === "count" ? { incrs: whole } : c.unit === "seconds" ? { incrs: spans } : {}, { size: 62, values: function (u, s) { return s.map(format); } }),
      ],
      series: [bars ? { label: c.xLabel || "", value: function (u, v) { return v === null ? "–" : c.labels[v]; } } : { label: "time", value: function (u, v) { return v === null || v === undefined ? "–" : iso(v); } }].concat(c.series.map(function (s, i) {
        const own = colour("--chart-" + (i % 4 + 1));
        return { label: s.label, stroke: own, width: bars ? 0 : 2, fill: bars ? own : undefined, points: { show: false }, paths: bars ? uPlot.paths.bars({ size: [0.7, 48] }) : undefined, value: function (u, v) { return format(v); } };
      })),
    };
    el.plot = new uPlot(o, data, el);
    el.drawn = raw; el.drawnWidth = width; el.drawnTheme = theme; el.drawnSeries = c.series.length;
  }

  function drawAll(root) {
    (root || document).querySelectorAll(".chart").forEach(draw);
  }

  function show() {
    if (!inner || !inner.firstElementChild) return;
    if (!box.open) box.showModal();
    const first = inner.querySelector("[autofocus], .dialog input:not([type=hidden]), .dialog textarea, .dialog select, .buttons button");
    if (first) first.focus();
    drawAll(inner);
  }

  function toast(text) {
    const all = document.getElementById("toasts");
    const one = document.createElement("p");
    one.className = "toast";
    one.textContent = text;
    all.append(one);
    setTimeout(function () { one.remove(); }, 8000);
  }

  document.addEventListener("htmx:afterSwap", function (e) {
    const swapped = e.detail.target || document; // server-sent events have no target
    relabel(swapped);
    if (swapped === inner) show();
    else drawAll(swapped);
  });
  document.addEventListener("console:done", function (e) {
    if (box && box.open) box.close();
    toast(e.detail.text);
  });
  document.addEventListener("htmx:sendError", function () {
    toast("The node is not responding. The outcome is unknown: check the result before you retry.");
  });
  document.addEventListener("htmx:sseOpen", function () { document.body.classList.remove("lost"); });
  document.addEventListener("htmx:sseError", function () { document.body.classList.add("lost"); });

  // The submit button of a dialog with data-confirm is disabled until its input contains that text.
  function confirmed(input) {
    const form = input.closest("form");
    form.querySelector("button[type=submit]").disabled = input.value.trim() !== input.dataset.confirm;
  }
  document.addEventListener("input", function (e) {
    if (e.target.dataset && e.target.dataset.confirm !== undefined) confirmed(e.target);
  });
  document.addEventListener("htmx:afterSettle", function () {
    document.querySelectorAll("#dialog [data-confirm]").forEach(confirmed);
  });

  // A checkbox in the table head selects all rows.
  document.addEventListener("change", function (e) {
    if (!e.target.matches || !e.target.matches("input[type=checkbox]")) return;
    const form = e.target.closest("form");
    const all = form && form.querySelector("[data-select-all]");
    if (!all) return;
    const rows = Array.from(form.querySelectorAll("input[type=checkbox]")).filter(function (c) { return c.name === all.dataset.selectAll; });
    if (e.target === all) rows.forEach(function (c) { c.checked = all.checked; });
    all.checked = rows.length > 0 && rows.every(function (c) { return c.checked; });
    all.indeterminate = !all.checked && rows.some(function (c) { return c.checked; });
  });

  document.addEventListener("click", function (e) {
    const on = e.target.closest("[data-close],[data-menu],[data-theme-toggle],[data-help],[data-copy]");
    if (!on) return;
    if (on.hasAttribute("data-close")) {
      const d = on.closest("dialog");
      if (d) d.close();
    } else if (on.hasAttribute("data-menu")) {
      const open = document.body.classList.toggle("menu-open");
      on.setAttribute("aria-expanded", String(open));
    } else if (on.hasAttribute("data-theme-toggle")) {
      toggle();
    } else if (on.hasAttribute("data-help")) {
      help();
    } else {
      navigator.clipboard.writeText(on.dataset.copy).then(function () { toast("Copied."); }, function () { toast("Could not copy to the clipboard."); });
    }
  });
  if (box) {
    box.addEventListener("close", function () { inner.textContent = ""; });
    box.addEventListener("click", function (e) { if (e.target === box) box.close(); });
  }

  function toggle() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = "lockstep_theme=" + root.dataset.theme + "; Path=/; Max-Age=31536000; SameSite=Strict";
    drawAll();
  }

  function help() {
    const h = document.getElementById("help-box");
    if (h && !h.open) h.showModal();
  }

  let went = 0;
  document.addEventListener("keydown", function (e) {
    if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.nodeName) || e.target.isContentEditable) return;
    if (Date.now() - went < 1500) {
      went = 0;
      const to = Array.from(document.querySelectorAll("[data-goto]")).find(function (k) { return k.textContent === e.key; });
      if (to) location.assign(to.dataset.goto);
      return;
    }
    switch (e.key) {
      case "g": went = Date.now(); break;
      case "t": toggle(); break;
      case "?": help(); break;
      case "/": {
        const search = document.querySelector("input[type=search]");
        if (search) { e.preventDefault(); search.focus(); }
      }
    }
  });

  let resized = 0;
  addEventListener("resize", function () { clearTimeout(resized); resized = setTimeout(drawAll, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () {
    document.querySelectorAll(".chart").forEach(function (c) { c.drawnWidth = 0; draw(c); });
  });
  relabel(document);
  drawAll();
  show();
  if (inner) inner.querySelectorAll("[data-confirm]").forEach(confirmed);
})();
