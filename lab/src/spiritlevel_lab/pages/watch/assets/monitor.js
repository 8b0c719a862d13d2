/* The rows of monitors: one picture per measure, its newest value, and what failed. */
import { draw, facts, make, number, plural, table } from "./dom.js";

const views = new Map(); // by file name
let axis = null; // the reader's choice for all: "step" or "epoch"

const build = name => {
  const part = {
    facts: make("dl", { class: "facts" }), newest: table(`Newest values of ${name}`), tools: make("div", { class: "tools" }),
    pictures: make("div", { class: "pair" }), errors: make("ul", { class: "errors" }), plots: new Map(),
    note: make("p", { class: "caption" }),
  };
  part.failures = make("div", {}, make("h3", {}, "Failed measurements"), part.errors);
  globalThis.spiritlevel.buttons(part.tools, "horizontal axis", [["step", "steps"], ["epoch", "epochs"]], "", value => {
    axis = value;
    for (const [, view] of views) paint(view);
  });
  part.element = make("section", { class: "monitor" }, make("h2", {}, name), part.facts, part.note, part.tools, part.pictures,
    part.newest.element, part.failures);
  return part;
};

const varies = values => new Set(values.filter(value => value !== null)).size > 1;
const chosenAxis = monitor => axis ?? (varies(monitor.steps) || !varies(monitor.epochs) ? "step" : "epoch");

const paint = view => {
  const { monitor, plots, pictures, tools } = view;
  const by = chosenAxis(monitor);
  for (const button of tools.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.value === by));
  const names = monitor.measures.map(measure => measure.name);
  for (const [name, plot] of plots) {
    if (!names.includes(name)) { plot.figure.remove(); plots.delete(name); }
  }
  for (const measure of monitor.measures) {
    if (!plots.has(measure.name)) {
      const element = make("div", { class: "live small" });
      plots.set(measure.name, { element, figure: make("figure", {}, make("h3", {}, measure.name), element) });
      pictures.append(plots.get(measure.name).figure);
    }
  }
  // once all have their place, which decides how wide each is
  for (const measure of monitor.measures) curve(plots.get(measure.name).element, monitor, measure, by);
};

const curve = (element, monitor, measure, by) => draw(element, theme => {
  const x = by === "step" ? monitor.steps : monitor.epochs;
  const failed = x.filter((_, i) => monitor.failed[i]);
  const few = x.length < 60;
  const traces = [
    { type: "scatter", mode: few ? "lines+markers" : "lines", x, y: measure.values, connectgaps: false, name: "value",
      line: { width: 2, color: theme.palette[0] }, marker: { size: 6 }, hovertemplate: `${by} %{x}: %{y:.5g}<extra></extra>` },
    { type: "scatter", mode: "markers", x: failed, y: failed.map(() => 0.05), yaxis: "y2", name: "failed",
      marker: { symbol: "x", size: 9, color: theme.palette[1] }, hovertemplate: `${by} %{x}: failed<extra></extra>` },
  ];
  return globalThis.spiritlevel.draw(element, traces, {
    height: element.clientHeight, showlegend: failed.length > 0, uirevision: by, xaxis: { title: { text: by } },
    yaxis: { exponentformat: "power" }, yaxis2: { overlaying: "y", range: [0, 1], fixedrange: true, visible: false },
  }, theme);
});

const show = (view, monitor) => {
  view.monitor = monitor;
  const last = monitor.last;
  facts(view.facts, [
    ["rows", monitor.rows], ["newest step", number(last.step)], ["epoch", number(last.epoch)], ["status", last.status || "–"],
    ["a measurement takes", last.seconds === null ? "–" : `${number(last.seconds)} s`],
    ...(monitor.num_failed ? [["failed", monitor.num_failed, "failed"]] : []),
  ]);
  view.note.textContent = (monitor.damaged ? `${plural(monitor.damaged, "line")} could not be read and is left out. ` : "")
    + (monitor.steps.length < monitor.rows ? `The pictures show ${monitor.steps.length} of ${monitor.rows} rows, evenly.` : "");
  view.newest.fill([{ title: "measure", text: true }, { title: "newest value" }, { title: "±" }, { title: "note", text: true }],
    monitor.measures.map(measure => [measure.name, measure.newest, measure.error, measure.status]));
  view.failures.hidden = monitor.num_failed === 0;
  view.errors.replaceChildren(...monitor.failures.map(failure =>
    make("li", {}, make("b", {}, `step ${number(failure.step)}, epoch ${number(failure.epoch)}`), ": ", failure.text)));
  paint(view);
};

export const showMonitors = (root, monitors) => {
  const names = monitors.map(monitor => monitor.name);
  for (const [name, view] of views) {
    if (!names.includes(name)) { view.element.remove(); views.delete(name); }
  }
  for (const monitor of monitors) {
    if (!views.has(monitor.name)) {
      views.set(monitor.name, build(monitor.name));
      root.append(views.get(monitor.name).element);
    }
    show(views.get(monitor.name), monitor);
  }
};
