/* Lines or single marks with their intervals, named in a legend; a log axis where numbers allow it.

   data: x_title and y_title [line], joined, log_x, log_y (how it starts),
         names (what those of the series say, or ""),
         series [{name, x, y, low, high, line}]; low and high are null where there are no intervals,
         line [x, y] holds the ends of a line that is straight on the axes it starts with, or is null */
"use strict";
(() => {
  const { text, number } = spiritlevel;
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down"];
  const DASHES = ["solid", "dash", "dot"]; // once the colours are used up

  const notPositive = values => values.filter(v => v !== null && v <= 0).length;
  const whiskers = (s, colour) => (s.low && s.high ? {
    type: "data", symmetric: false, color: colour, thickness: 1.5, width: 4,
    array: s.y.map((y, i) => (s.high[i] === null || y === null ? 0 : Math.max(0, s.high[i] - y))),
    arrayminus: s.y.map((y, i) => (s.low[i] === null || y === null ? 0 : Math.max(0, y - s.low[i]))),
  } : undefined);

  const draw = (data, state, theme) => {
    const left = { x: notPositive(data.series.flatMap(s => s.x)), y: notPositive(data.series.flatMap(s => s.y)) };
    const log = { x: state.x === "log" && !left.x, y: state.y === "log" && !left.y };
    const all = data.series.reduce((sum, s) => sum + s.x.length, 0);
    const titles = { x: data.x_title.map(text).join("<br>"), y: data.y_title.map(text).join("<br>") };
    const hovered = { x: data.x_title.map(text).join(" "), y: data.y_title.map(text).join(" ") };
    const asAtFirst = log.x === data.log_x && log.y === data.log_y;
    const traces = data.series.flatMap((s, k) => {
      const colour = theme.palette[k % theme.palette.length];
      const ends = i => (s.low && s.low[i] !== null ? ` [${number(s.low[i])}, ${number(s.high[i])}]` : "");
      const line = s.line && asAtFirst ? [{
        type: "scatter", mode: "lines", x: s.line[0], y: s.line[1], line: { color: colour, width: 1.5 },
        showlegend: false, hoverinfo: "skip", legendgroup: `series ${k}`,
      }] : [];
      return [{
        legendgroup: `series ${k}`,
        type: "scatter", mode: data.joined ? "lines+markers" : "markers", x: s.x, y: s.y,
        name: text(spiritlevel.shortened(s.name, state.plot.clientWidth < 560 ? 30 : 60)),
        error_y: whiskers(s, colour), hoverinfo: "text",
        hovertext: s.x.map((x, i) => `${text(s.name)}<br>${hovered.x}: ${number(x)}<br>` +
          `${hovered.y}: ${number(s.y[i])}${ends(i)}`),
        line: { color: colour, width: 2, dash: DASHES[Math.floor(k / theme.palette.length) % DASHES.length] },
        marker: { size: 8, color: colour, symbol: SYMBOLS[k % SYMBOLS.length],
                  line: { width: 0.5, color: theme.background } },
      }, ...line];
    });
    const axis = { zeroline: false, exponentformat: "power" }; // not 100µ
    spiritlevel.draw(state.plot, traces, {
      height: 400 + spiritlevel.legendHeight(traces, state.plot.clientWidth),
      showlegend: data.series.length > 1, hovermode: "closest",
      legend: { title: { text: text(data.names), side: "top" } },
      xaxis: { ...axis, title: { text: titles.x }, type: log.x ? "log" : "linear" },
      yaxis: { ...axis, title: { text: titles.y }, type: log.y ? "log" : "linear" },
    }, theme);
    const said = ["x", "y"].filter(axis => state[axis] === "log" && !log[axis]).map(axis =>
      `The ${axis} axis stays linear: ${left[axis]} of ${all} numbers on it are not positive.`);
    const below = log.y ? notPositive(data.series.flatMap(s => s.low ?? [])) : 0;
    if (below) said.push(`Intervals that reach down to 0 or below, where a log axis has no place: ${below}.`);
    state.said.textContent = said.join(" ");
  };

  const start = data => ({ x: data.log_x ? "log" : "linear", y: data.log_y ? "log" : "linear" });
  const add = (data, state, { press }) => {
    for (const axis of ["x", "y"]) {
      press(`Scale of the ${axis} axis`, [["linear", `Linear ${axis}`], ["log", `Log ${axis}`]], state[axis],
        value => { state[axis] = value; });
    }
  };

  spiritlevel.controlled("series", draw, start, add);
})();
