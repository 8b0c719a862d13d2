/* Lines with bands around them; what is shown is chosen above.

   data: controls [{label, options}], x? [number], x_title,
         views {"i,j": {y_title [line], x?: [number or name], series: [{name, y, low, high, colour, dashed}]}}
         where i,j are the chosen options; null where there is no number */
"use strict";
(() => {
  const { text, number } = spiritlevel;
  const DASHES = ["solid", "dot", "longdash", "dashdot"]; // once the colours are used up

  const clear = (colour, share) => {
    const parts = [1, 3, 5].map(i => parseInt(colour.slice(i, i + 2), 16));
    return `rgba(${parts.join(",")},${share})`;
  };

  const draw = (data, state, theme) => {
    const view = data.views[state.chosen.join(",")];
    const x = view.x ?? data.x;
    const named = x.some(value => typeof value === "string");
    const places = named ? x.map((_, i) => i) : x;
    const values = view.series.flatMap(s => [...s.y, ...s.low, ...s.high]).filter(v => v !== null);
    const left = values.filter(v => v <= 0).length;
    const log = state.scale === "log" && left === 0;
    const few = view.series.length <= 6;
    const traces = [];
    for (const s of view.series) {
      const colour = theme.palette[s.colour % theme.palette.length];
      const shown = i => [s.y[i], s.low[i], s.high[i]].every(v => v !== null);
      const kept = places.map((_, i) => i).filter(shown);
      const band = { type: "scatter", mode: "lines", x: kept.map(i => places[i]), line: { width: 0 },
                     hoverinfo: "skip", showlegend: false, legendgroup: text(s.name) };
      traces.push({ ...band, y: kept.map(i => s.low[i]) });
      traces.push({ ...band, y: kept.map(i => s.high[i]), fill: "tonexty",
                    fillcolor: clear(colour, few ? 0.2 : 0.1) });
      const turn = Math.floor(s.colour / theme.palette.length);
      traces.push({
        type: "scatter", mode: named ? "lines+markers" : "lines", x: places, y: s.y,
        name: text(s.name), legendgroup: text(s.name), hoverinfo: "text",
        text: s.y.map((y, i) => `${text(s.name)}<br>${text(data.x_title)}: ${text(x[i])}<br>` +
          `median ${number(y)}, quartiles ${number(s.low[i])} to ${number(s.high[i])}`),
        line: { color: colour, width: 2, dash: s.dashed ? "dash" : DASHES[turn % DASHES.length] },
        marker: { size: 7 },
      });
    }
    spiritlevel.draw(state.plot, traces, {
      xaxis: { title: { text: text(data.x_title) },
               ...(named ? { tickvals: places, ticktext: x.map(text) } : {}) },
      yaxis: { title: { text: view.y_title.map(text).join("<br>") }, type: log ? "log" : "linear" },
      hovermode: "closest",
    }, theme);
    state.said.textContent = state.scale === "log" && !log
      ? `The axis stays linear: ${left} of ${values.length} drawn numbers are not positive, and a log axis would leave them out.` : "";
  };

  spiritlevel.controlled("lines", draw);
})();
