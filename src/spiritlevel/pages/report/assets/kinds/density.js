/* Density of eigenvalues with the ones computed one by one marked on it.

   data: {curve: {x, y} or null, marks, converged} */
"use strict";
spiritlevel.kinds.density = (element, data, theme) => {
  const { number } = spiritlevel;
  element.dataset.scale ??= "log"; // the bulk near 0 hides everything else on a linear axis
  element.replaceChildren();
  const controls = document.createElement("div");
  const plot = document.createElement("div");
  element.append(controls, plot);
  const paint = () => {
    const traces = [];
    if (data.curve) {
      const { x, y } = data.curve;
      traces.push({ type: "scatter", mode: "lines", x, y, name: "density", fill: "tozeroy",
                    line: { color: theme.palette[0], width: 1.5 }, fillcolor: `${theme.palette[0]}33`,
                    hovertext: x.map((v, i) => `eigenvalue ${number(v)}<br>density ${number(y[i])}`),
                    hoverinfo: "text" });
    }
    const highest = data.curve ? Math.max(...data.curve.y) : 1;
    const lowest = data.curve ? Math.min(...data.curve.y) : 0;
    const log = data.curve && element.dataset.scale === "log";
    for (const found of [true, false]) {
      const marks = data.marks.filter((_, i) => data.converged[i] === found);
      if (!marks.length) continue;
      const foot = log ? lowest : 0;
      traces.push({ type: "scatter", mode: "lines+markers",
                    name: found ? "computed one by one" : "not converged",
                    x: marks.flatMap(v => [v, v, null]),
                    y: marks.flatMap(() => [foot, log ? lowest * (highest / lowest) ** 0.9 : 0.9 * highest, null]),
                    line: { color: theme.palette[1], width: 1, dash: found ? "solid" : "dot" },
                    marker: { symbol: found ? "circle" : "circle-open", size: 7, color: theme.palette[1] },
                    hovertext: marks.flatMap(v => [`eigenvalue ${number(v)}`, `eigenvalue ${number(v)}`, ""]),
                    hoverinfo: "text" });
    }
    spiritlevel.draw(plot, traces, {
      height: data.curve ? 400 : 220,
      xaxis: { title: { text: "eigenvalue" }, zeroline: true },
      yaxis: { title: { text: data.curve ? "density" : "" }, type: log ? "log" : "linear",
               showticklabels: Boolean(data.curve), exponentformat: "power", dtick: log ? 1 : undefined,
               range: log ? [Math.log10(lowest), Math.log10(highest) + 0.2] : undefined },
    }, theme);
  };
  if (data.curve) {
    spiritlevel.buttons(controls, "Scale of the density", [["log", "Log"], ["linear", "Linear"]],
      element.dataset.scale, value => { element.dataset.scale = value; paint(); });
  }
  paint();
};
