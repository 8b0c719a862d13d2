/* Networks below each other, their values with intervals; one measure at a time.

   data: {label, series: [{name, names, states: {state: {values, low, high}}}]} */
"use strict";
spiritlevel.kinds.points = (element, data, theme) => {
  const { text, number, distinct } = spiritlevel;
  let chosen = Number(element.dataset.chosen ?? 0);
  element.dataset.scale ??= "linear";
  element.replaceChildren();
  const controls = document.createElement("div");
  controls.className = "tools";
  const plot = document.createElement("div");
  element.append(controls, plot);
  const paint = () => {
    const series = data.series[chosen];
    const states = Object.entries(series.states);
    const traces = states.map(([state, points], s) => ({
      type: "scatter", mode: "markers", name: text(state),
      x: points.values.map(value => value ?? NaN),
      y: series.names.map((_, i) => i + (states.length > 1 ? (s ? 0.15 : -0.15) : 0)),
      marker: { size: 10, color: theme.palette[s], symbol: s ? "circle-open" : "circle", line: { width: 2, color: theme.palette[s] } },
      error_x: { type: "data", symmetric: false, color: theme.palette[s], thickness: 1.5, width: 5,
                 array: points.values.map((v, i) => (points.high[i] === null ? 0 : points.high[i] - v)),
                 arrayminus: points.values.map((v, i) => (points.low[i] === null ? 0 : v - points.low[i])) },
      hovertext: series.names.map((name, i) => `${text(name)}, ${text(state)}<br>${number(points.values[i])}` +
        ` (${number(points.low[i])} to ${number(points.high[i])})`),
      hoverinfo: "text",
    }));
    const drawable = traces.every(trace => trace.x.every(value => !(value <= 0)));
    spiritlevel.draw(plot, traces, {
      height: 150 + 44 * series.names.length,
      showlegend: states.length > 1,
      xaxis: { title: { text: text(series.name) }, zeroline: false, exponentformat: "power",
               type: element.dataset.scale === "log" && drawable ? "log" : "linear" },
      yaxis: { range: [series.names.length - 0.4, -0.6], tickvals: series.names.map((_, i) => i),
               ticktext: distinct(series.names).map(text), zeroline: false },
    }, theme);
  };
  if (data.series.length > 1) {
    spiritlevel.choice(controls, data.label, data.series.map((s, i) => [String(i), s.name]),
      String(chosen), value => { chosen = Number(value); element.dataset.chosen = value; paint(); });
  }
  spiritlevel.buttons(controls, "Scale of the values", [["linear", "Linear"], ["log", "Log"]],
    element.dataset.scale, value => { element.dataset.scale = value; paint(); });
  paint();
};
