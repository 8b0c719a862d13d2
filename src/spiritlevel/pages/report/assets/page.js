/* The frame of a page: light and dark, pictures, help. Tables are in tables.js.

   What a picture's script (kinds/KIND.js) can use:
     spiritlevel.kinds.KIND = (element, data, theme) => …   called again on every change of theme or
                                                            width; `element` is an empty <div> or
                                                            holds what the call before drew there
     theme     {dark, text, muted, line, grid, background, panel, accent, font,
                palette: [8 colours], sequential, diverging: [[0, colour], …]}
     spiritlevel.draw(element, traces, layout, theme)       Plotly with the page's look
     spiritlevel.text(name)                                 EVERY name that Plotly shows goes through
                                                            this: it would read tags in it otherwise
     spiritlevel.shortened(name)                            a long name with its middle left out
     spiritlevel.distinct(names)                            so that as few as possible look alike
     spiritlevel.ink(scale, fraction)                       black or white to write on that colour
     spiritlevel.number(value)                              a number as the tables show it
     spiritlevel.legendHeight(traces, width)                of the legend above a picture, in pixels
     spiritlevel.choice(element, label, options, chosen, onChange)   a labelled <select>
     spiritlevel.buttons(element, label, options, chosen, onChange)  a row of pressed buttons
     spiritlevel.controlled(kind, draw, start?, add?)       registers a kind with controls above and a
                                                            sentence below: draw(data, state, theme)
                                                            fills state.plot and state.said */
"use strict";
(() => {
  const root = document.documentElement;
  // Okabe & Ito's colours, the ones that stand out from the background first.
  const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8000"];
  const DARK = ["#56B4E9", "#E69F00", "#2BC79A", "#E39BC3", "#F0E442", "#F0823C", "#4B9FD8", "#FFFFFF"];
  const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74",
                   "#c3b369", "#e1cc55", "#fee838"].map((colour, i) => [i / 9, colour]);
  let printing = false;

  const isDark = () => !printing && root.dataset.theme === "dark";
  const theme = () => {
    const style = getComputedStyle(root);
    const colour = name => style.getPropertyValue(`--${name}`).trim();
    const dark = isDark();
    const names = ["text", "muted", "line", "grid", "background", "panel", "accent"];
    return {
      dark,
      ...Object.fromEntries(names.map(name => [name, colour(name)])),
      font: getComputedStyle(document.body).fontFamily,
      palette: dark ? DARK : LIGHT,
      sequential: CIVIDIS,
      diverging: dark ? [[0, "#56B4E9"], [0.5, "#262b32"], [1, "#F0823C"]]
                      : [[0, "#0072B2"], [0.5, "#f4f4f4"], [1, "#D55E00"]],
    };
  };

  const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
  const text = name => String(name).replace(/[&<>]/g, c => entities[c]).replace(/\s+/g, " ");
  const shortened = (name, length = innerWidth < 640 ? 16 : 32) => { // keeps both ends
    const whole = String(name);
    const half = Math.floor((length - 1) / 2);
    return whole.length <= length ? whole : `${whole.slice(0, half)}…${whole.slice(-half)}`;
  };
  const LEGEND_LINE = 22; // pixels
  // It stands above the picture, which must keep its height; all names get the room of the longest.
  const legendHeight = (traces, width) => {
    const names = traces.filter(trace => trace.showlegend !== false).map(trace => trace.name);
    const room = 50 + 8 * Math.max(0, ...names.map(name => name.length));
    return LEGEND_LINE * (1 + Math.ceil(names.length / Math.max(1, Math.floor((width - 72) / room))));
  };
  const distinct = names => { // blocks of a network are alike at both ends, and differ before the last
    const ways = [names.map(name => shortened(name)), names.map(name => ended(String(name)))];
    const [both, ends] = ways.map(shown => new Set(shown).size);
    return ways[Number(ends > both)];
  };
  const ended = (name, length = innerWidth < 640 ? 24 : 32) =>
    (name.length <= length ? name : `…${name.slice(1 - length)}`);
  const channels = colour => [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16) / 255);
  const ink = (scale, fraction) => { // black or white, whichever is easier to read on that colour
    const above = Math.max(1, scale.findIndex(([at]) => at >= fraction));
    const [[from, first], [to, second]] = [scale[above - 1], scale[above]];
    const share = (fraction - from) / (to - from);
    const [a, b] = [channels(first), channels(second)];
    const linear = a.map((value, i) => value + share * (b[i] - value))
      .map(v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    return light > 0.179 ? "#000000" : "#ffffff"; // where both contrast alike
  };
  const number = value => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
    const size = Math.abs(value);
    const plain = size === 0 || (size >= 1e-4 && size < 1e6);
    const shown = plain ? String(Number(value.toPrecision(size >= 1e4 ? 6 : 4)))
                        : value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
    return shown.replaceAll("-", "−");
  };

  const merged = (base, extra) => {
    const out = { ...base };
    for (const [key, value] of Object.entries(extra)) {
      const both = [out[key], value].every(v => v && typeof v === "object" && !Array.isArray(v));
      out[key] = both ? merged(out[key], value) : value;
    }
    return out;
  };
  const draw = (element, traces, layout, theme) => {
    const axis = { gridcolor: theme.grid, linecolor: theme.line, zerolinecolor: theme.line,
                   tickcolor: theme.line, automargin: true, title: { standoff: 12 } };
    const axes = new Set(["xaxis", "yaxis", ...Object.keys(layout).filter(k => /^[xy]axis\d*$/.test(k))]);
    const base = {
      autosize: true, height: 420, margin: { l: 56, r: 16, t: 16, b: 48 },
      paper_bgcolor: theme.background, plot_bgcolor: theme.background,
      font: { family: theme.font, size: 13, color: theme.text }, colorway: theme.palette,
      hoverlabel: { bgcolor: theme.panel, bordercolor: theme.line,
                    font: { family: theme.font, size: 13, color: theme.text }, align: "left" },
      legend: { orientation: "h", yanchor: "bottom", y: 1.02, x: 0 },
      // a finger that scrolls the page must not draw a zoom box
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      ...Object.fromEntries([...axes].map(name => [name, axis])),
    };
    return Plotly.react(element, traces, merged(base, layout), {
      displaylogo: false, responsive: false, showTips: false,
      displayModeBar: layout.dragmode === false ? false : "hover", // nothing to zoom: no tools
      modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d"],
    });
  };

  let controls = 0;
  const choice = (element, label, options, chosen, onChange) => {
    const select = document.createElement("select");
    select.id = `choice-${++controls}`;
    for (const [value, shown] of options) {
      const option = document.createElement("option");
      option.value = value;
      option.textContent = shown;
      select.append(option);
    }
    select.value = chosen;
    select.addEventListener("change", () => onChange(select.value));
    const caption = document.createElement("label");
    caption.htmlFor = select.id;
    caption.className = "count";
    caption.textContent = label;
    element.append(caption, select);
    return select;
  };
  const buttons = (element, label, options, chosen, onChange) => {
    const group = document.createElement("div");
    group.className = "tools";
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", label);
    for (const [value, shown] of options) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = shown;
      button.dataset.value = value;
      button.setAttribute("aria-pressed", String(value === chosen));
      button.addEventListener("click", () => {
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
        onChange(value);
      });
      group.append(button);
    }
    element.append(group);
    return group;
  };

  const kinds = {};
  // Without `start` and `add`, one choice for each of data.controls, and a linear or log axis.
  const listed = data => ({ chosen: data.controls.map(() => 0), scale: "linear" });
  const addListed = (data, state, { choose, press }) => {
    data.controls.forEach(({ label, options }, place) =>
      choose(label, options, 0, value => { state.chosen[place] = value; }));
    press("Axis", [["linear", "Linear"], ["log", "Log"]], state.scale, value => { state.scale = value; });
  };
  const controlled = (kind, drawIt, start = listed, add = addListed) => {
    const states = new WeakMap();
    const build = (element, data) => {
      const state = start(data);
      const tools = document.createElement("div");
      tools.className = "tools";
      state.plot = document.createElement("div");
      state.said = document.createElement("p");
      state.said.className = "caption";
      state.said.setAttribute("role", "status");
      element.append(tools, state.plot, state.said);
      const then = change => value => {
        change(value);
        drawIt(data, state, state.theme);
      };
      add(data, state, {
        choose: (label, names, chosen, change) => {
          if (names.length < 2) return;
          const together = document.createElement("span"); // a label is not parted from its choice
          together.className = "tools";
          tools.append(together);
          const options = names.map((name, i) => [String(i), name]);
          choice(together, label, options, String(chosen), then(value => change(Number(value))));
        },
        press: (label, options, chosen, change) => buttons(tools, label, options, chosen, then(change)),
      });
      return state;
    };
    kinds[kind] = (element, data, theme) => {
      if (!states.has(element)) states.set(element, build(element, data));
      const state = states.get(element);
      state.theme = theme;
      drawIt(data, state, theme);
    };
  };
  globalThis.spiritlevel = {
    kinds, theme, text, shortened, distinct, legendHeight, ink, number, draw, choice, buttons, controlled, tables: null,
  };

  // -- pictures: drawn when they come near the screen, those that are open before printing -------------
  const plots = () => [...document.querySelectorAll(".plot")];
  const dataOf = new WeakMap();
  const drawn = new WeakMap(); // the width it was drawn at
  const show = element => {
    const id = element.closest("figure").id;
    if (!dataOf.has(element)) {
      dataOf.set(element, JSON.parse(document.getElementById(`${id}-data`).textContent));
    }
    drawn.set(element, element.clientWidth);
    element.classList.add("drawn");
    kinds[element.dataset.kind](element, dataOf.get(element), theme());
  };
  const redraw = () => plots().filter(element => drawn.has(element)).forEach(show);
  const near = new IntersectionObserver(entries => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        show(entry.target);
      }
    }
  }, { rootMargin: "400px" });
  let waiting = 0;
  const sizes = new ResizeObserver(() => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      for (const element of plots()) {
        if (drawn.has(element) && drawn.get(element) !== element.clientWidth) show(element);
      }
    }, 120);
  });

  const save = async (figure, format) => {
    const plot = figure.querySelector(".plot");
    if (!drawn.has(plot)) show(plot);
    const inner = plot.classList.contains("js-plotly-plot") ? plot : plot.querySelector(".js-plotly-plot");
    await Plotly.downloadImage(inner, { format, scale: format === "png" ? 2 : 1, filename: figure.id });
  };

  // -- printing: light, all drawn that is open -----------------------------------------------------
  addEventListener("beforeprint", () => {
    printing = true;
    plots().filter(element => element.clientWidth).forEach(show);
  });
  addEventListener("afterprint", () => {
    printing = false;
    redraw();
  });

  // -- light and dark ----------------------------------------------------------------------------
  const toggle = document.getElementById("theme");
  const name = () => {
    toggle.textContent = root.dataset.theme === "dark" ? "Light colours" : "Dark colours";
  };
  toggle.addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("spiritlevel-theme", root.dataset.theme);
    } catch { /* a page opened from a file may have no storage: the choice lasts until it is closed */ }
    name();
    redraw();
  });

  // -- help below a heading, by pointer and by keyboard --------------------------------------------
  const tip = document.getElementById("tip");
  let explained = null;
  const explain = event => {
    explained = event.target.closest?.("[data-help]") ?? null;
    tip.textContent = explained?.dataset.help ?? "";
    place();
  };
  const place = () => {
    tip.hidden = !explained;
    if (!explained) return;
    const heading = explained.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(heading.left, innerWidth - tip.offsetWidth - 8))}px`;
    const below = heading.bottom + 6;
    const fits = below + tip.offsetHeight < innerHeight;
    tip.style.top = `${fits ? below : Math.max(8, heading.top - tip.offsetHeight - 6)}px`;
  };
  document.addEventListener("mouseover", explain);
  document.addEventListener("focusin", explain);
  document.addEventListener("keydown", event => { if (event.key === "Escape") { explained = null; place(); } });
  addEventListener("scroll", place, { passive: true, capture: true });

  // -- a link to what is folded opens it -------------------------------------------------------------
  const openTarget = () => {
    let id = location.hash.slice(1);
    try { id = decodeURIComponent(id); } catch { return; }
    const target = document.getElementById(id);
    let folded = target?.closest("details") ?? target?.querySelector(":scope > details");
    for (; folded; folded = folded.parentElement.closest("details")) folded.open = true;
  };
  addEventListener("hashchange", openTarget);

  // -- where the reader is ---------------------------------------------------------------------------
  const links = new Map([...document.querySelectorAll("nav.contents a")].map(a => [a.hash.slice(1), a]));
  const reading = new IntersectionObserver(entries => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      for (const [id, link] of links) link.setAttribute("aria-current", String(id === target.id));
    }
  }, { rootMargin: "-10% 0px -80% 0px" });

  document.addEventListener("DOMContentLoaded", () => {
    name();
    for (const element of plots()) { near.observe(element); sizes.observe(element); }
    for (const section of document.querySelectorAll("main > section")) reading.observe(section);
    document.addEventListener("click", event => {
      const button = event.target.closest("button[data-save]");
      if (button) save(button.closest("figure"), button.dataset.save);
    });
    openTarget();
  });
})();
