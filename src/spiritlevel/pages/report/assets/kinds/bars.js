/* One bar per name, with its interval; several series are chosen from.

   data: {series: [{name, names, values, low, high, exact}], axis} */
"use strict";
spiritlevel.kinds.bars = (element, data, theme) => {
  let chosen = Number(element.dataset.chosen ?? 0);
  element.replaceChildren();
  const controls = document.createElement("div");
  controls.className = "tools";
  const plot = document.createElement("div");
  element.append(controls, plot);
  const paint = () => {
    const series = data.series[chosen];
    const shown = series.values.map(value => value ?? NaN);
    const error = (end, sign) => series.values.map((value, i) =>
      (end[i] === null || value === null ? 0 : Math.max(0, sign * (end[i] - value))));
    spiritlevel.draw(plot, [{
      type: "bar", orientation: "h",
      // positions, not names: two layers may be shortened to the same text
      y: series.names.map((_, i) => i), x: shown,
      marker: { color: theme.palette[0] },
      error_x: { type: "data", symmetric: false, array: error(series.high, 1),
                 arrayminus: error(series.low, -1), color: theme.text, thickness: 1.5, width: 4,
                 visible: series.exact.some(exact => !exact) },
      hovertext: series.names.map((name, i) =>
        `${spiritlevel.text(name)}<br>${spiritlevel.number(series.values[i])}${series.exact[i] ? ", exact" : ""}`),
      hoverinfo: "text",
    }], {
      height: Math.max(200, 90 + 26 * series.names.length),
      xaxis: { title: { text: spiritlevel.text(series.name) } },
      yaxis: { autorange: "reversed", tickvals: series.names.map((_, i) => i), showgrid: false,
               ticktext: spiritlevel.distinct(series.names).map(spiritlevel.text) },
      bargap: 0.35,
    }, theme);
  };
  if (data.series.length > 1) {
    spiritlevel.choice(controls, data.label, data.series.map((s, i) => [String(i), s.name]),
      String(chosen), value => { chosen = Number(value); element.dataset.chosen = value; paint(); });
  }
  paint();
};
