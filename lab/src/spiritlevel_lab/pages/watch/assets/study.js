/* A study: how far it is, what its finished runs look like, what failed. */
import { draw, duration, facts, make, number, plural, settings, table } from "./dom.js";

const MOST_COLOURS = 8;
const SILENT = 120; // seconds without a sign of life after which a run may be taken over
const view = { scale: "linear", colour: null, curve: "loss" }; // null: the first setting
let parts = null;

const build = (root, choose) => {
  const { choice, buttons } = globalThis.spiritlevel;
  const part = {
    bar: make("div", { class: "progress", role: "progressbar", "aria-label": "runs that ended", "aria-valuemin": "0" }),
    facts: make("dl", { class: "facts" }),
    errors: make("ul", { class: "errors" }),
    scatter: make("div", { class: "live", id: "scatter" }),
    scatterNote: make("p", { class: "caption" }),
    curves: make("div", { class: "live", id: "curves" }),
    curvesNote: make("p", { class: "caption" }),
    runs: table("Recent runs"),
    runsNote: make("p", { class: "caption" }), scatterTitle: make("h3", {}),
  };
  for (const kind of ["done", "failed", "running"]) part.bar.append(make("span", { class: kind }));
  const scatterTools = make("div", { class: "tools" });
  const curveTools = make("div", { class: "tools" });
  const together = () => scatterTools.appendChild(make("span", { class: "tools" })); // a choice and its label
  part.measure = choice(together(), "measure", [], "", choose);
  part.colour = choice(together(), "colour by", [], "", value => { view.colour = value; paintScatter(); });
  buttons(scatterTools, "scale of the measure", [["linear", "linear"], ["log", "log"]], view.scale,
    value => { view.scale = value; paintScatter(); });
  buttons(curveTools, "curve", [["loss", "loss"], ["accuracy", "accuracy"]], view.curve,
    value => { view.curve = value; paintCurves(); });
  part.failures = make("section", { id: "failures" }, make("h2", {}, "Failures"), part.errors);
  part.pictures = make("section", {}, make("h2", {}, "Finished runs"), make("div", { class: "pair" },
    make("figure", {}, part.scatterTitle, scatterTools, part.scatter, part.scatterNote),
    part.training = make("figure", {}, make("h3", {}, "Training curves"), curveTools, part.curves, part.curvesNote)));
  part.table = make("section", { id: "runs" }, make("h2", {}, "Recent runs"), part.runsNote, part.runs.element);
  root.replaceChildren(make("section", { id: "progress" }, part.bar, part.facts), part.failures, part.pictures, part.table);
  return part;
};

const options = (select, pairs, chosen) => {
  const now = [...select.options].map(option => [option.value, option.textContent]);
  if (JSON.stringify(now) !== JSON.stringify(pairs)) {
    select.replaceChildren(...pairs.map(([value, shown]) => make("option", { value }, shown)));
  }
  select.value = chosen;
};

const timeLeft = study => {
  if (study.counts.done + study.counts.failed === study.total) return "none: all have ended";
  if (study.counts.running === 0) return "no worker is running";
  return study.seconds_left === null ? "not known yet" : `about ${duration(study.seconds_left)}`;
};

let study = null;

const progress = () => {
  const { counts, total } = study;
  for (const piece of parts.bar.children) piece.style.width = `${100 * counts[piece.className] / Math.max(1, total)}%`;
  parts.bar.setAttribute("aria-valuemax", total);
  parts.bar.setAttribute("aria-valuenow", counts.done + counts.failed);
  const rows = [
    ["done", `${counts.done} of ${total}`, "done"], ["running", counts.running, "running"],
    ["waiting", counts.pending, "pending"], ["failed", counts.failed, "failed"], ["time left", timeLeft(study)],
  ];
  const silence = study.last_sign === null ? 0 : Date.now() / 1000 - study.last_sign;
  if (silence > SILENT) rows.push(["last sign of life", `${duration(silence)} ago`]);
  facts(parts.facts, rows);
};

/* Points by the value of a setting: in the grid's order, so that a value keeps its colour while runs arrive. */
const groups = () => {
  const values = study.axes.find(axis => axis.name === view.colour)?.values ?? [];
  const found = Array.from({ length: Math.max(1, Math.min(values.length, MOST_COLOURS)) }, () => []);
  for (const point of study.points) {
    const place = Math.max(0, values.findIndex(value => value === point.axes[view.colour]));
    found[Math.min(place, found.length - 1)].push(point);
  }
  const name = i => i === MOST_COLOURS - 1 && values.length > MOST_COLOURS ? "others" : `${view.colour} ${values[i]}`;
  return found.map((points, i) => [values.length ? name(i) : "", points]);
};

const paintScatter = () => draw(parts.scatter, theme => {
  const { text, draw: plot } = globalThis.spiritlevel;
  const traces = groups().map(([name, points], i) => ({ visible: points.length > 0,
    type: "scatter", mode: "markers", name: text(name), x: points.map(p => p.x), y: points.map(p => p.y),
    marker: { size: 9, opacity: 0.85, color: theme.palette[i % theme.palette.length], symbol: i,
              line: { width: 1, color: theme.background } },
    hovertext: points.map(p => `${text(settings(p.axes, p.seed))}<br>${number(p.x)}, ${text(study.target)} ${number(p.y)}`), hoverinfo: "text",
  }));
  parts.scatterTitle.textContent = `A measure against ${study.target === "gap" ? "the generalization gap" : study.target}`;
  const beyond = view.scale === "log" ? study.points.filter(point => point.x <= 0).length : 0;
  parts.scatterNote.textContent = study.points.length === 0
    ? (study.given && study.counts.done ? "No outcome is known of these networks." : "The first finished run appears here.")
    : `n = ${study.points.length}${study.given ? "" : ": test loss − training loss at the last epoch"}. `
      + (study.shown < study.counts.done ? `The newest ${study.shown} of ${study.counts.done} runs. ` : "")
      + (beyond ? `${plural(beyond, "value")} of 0 or less cannot be shown on a log scale.` : "");
  return plot(parts.scatter, traces, {
    height: parts.scatter.clientHeight, showlegend: view.colour !== "", uirevision: `${study.measure} ${view.scale}`,
    xaxis: { title: { text: text(study.measure) }, type: view.scale, exponentformat: "power" },
    yaxis: { title: { text: text(study.target) } },
  }, theme);
});

const paintCurves = () => draw(parts.curves, theme => {
  const names = { loss: ["train_loss", "test_loss"], accuracy: ["train_accuracy", "test_accuracy"] }[view.curve];
  const traces = names.flatMap((name, i) => {
    const band = study.curves[name];
    const colour = theme.palette[i];
    const line = { type: "scatter", mode: "lines", x: band.epoch, hoverinfo: "skip", line: { width: 0 }, showlegend: false };
    return [
      { ...line, y: band.low }, { ...line, y: band.high, fill: "tonexty", fillcolor: `${colour}33` },
      { type: "scatter", mode: band.epoch.length > 1 ? "lines" : "markers", name: i ? "test" : "training", x: band.epoch, y: band.median,
        line: { width: 2, color: colour, dash: i ? "solid" : "dot" }, marker: { color: colour, size: 8 }, customdata: band.n,
        hovertemplate: "epoch %{x}: %{y:.4g}, n = %{customdata}" },
    ];
  });
  parts.curvesNote.textContent = study.shown === 0 ? "The first finished run appears here."
    : `Median of ${plural(study.shown, "finished run")}; half of them lie in the band.`;
  return globalThis.spiritlevel.draw(parts.curves, traces, {
    height: parts.curves.clientHeight, uirevision: view.curve, legend: { traceorder: "normal" }, xaxis: { title: { text: "epoch" } }, yaxis: { title: { text: view.curve } },
  }, theme);
});

const runs = () => {
  const axes = [...(study.given ? ["network"] : []), ...study.axes.map(axis => axis.name)];
  const trained = study.given ? [] : [{ title: "epochs" }];
  const columns = [
    ...axes.map(title => ({ title, text: true })), { title: "seed" }, { title: "status", text: true }, ...trained,
    { title: "training loss" }, { title: "test loss" }, { title: "training accuracy" }, { title: "test accuracy" }, { title: "time" },
  ];
  parts.runs.fill(columns, study.recent.map(run => [
    ...axes.map(axis => run.axes[axis]), run.seed, run.outcome === "diverged" ? "diverged" : run.status, ...(study.given ? [] : [run.epochs]),
    run.train_loss, run.test_loss, run.train_accuracy, run.test_accuracy,
    run.status === "running" ? `for ${duration(Date.now() / 1000 - run.started)}` : run.seconds === null ? null : `${number(Number(run.seconds.toPrecision(3)))} s`,
  ]));
  const begun = study.total - study.counts.pending;
  parts.runsNote.textContent = begun === 0 ? "No run has begun."
    : study.recent.length < begun ? `The newest ${study.recent.length} of ${begun} that have begun.` : "";
};

const failures = () => {
  parts.failures.hidden = study.counts.failed === 0;
  parts.errors.replaceChildren(...study.failures.map(failure => make("li", {},
    make("b", {}, settings(failure.axes, failure.seed)), ": ", failure.error ?? "", " ", make("code", {}, failure.run))));
  const more = study.counts.failed - study.failures.length;
  if (more > 0) parts.errors.append(make("li", {}, `and ${more} before these`));
};

/* `choose` is called with the measure that the reader picks. */
export const showStudy = (root, found, choose) => {
  if (found === null) {
    root.replaceChildren();
    parts = null;
    return;
  }
  parts ??= build(root, choose);
  study = found;
  options(parts.measure, study.measures.map(name => [name, name]), study.measure);
  const axes = study.axes.map(axis => axis.name);
  if (view.colour === null || !["", ...axes].includes(view.colour)) view.colour = axes[0] ?? "";
  options(parts.colour, [...axes.map(axis => [axis, axis]), ["", "nothing"]], view.colour);
  progress();
  failures();
  paintScatter();
  parts.training.hidden = study.given;
  if (!study.given) paintCurves();
  runs();
};

/* Times that pass without anything being written. */
export const tick = () => {
  if (parts === null) return;
  progress();
  runs();
};
