/* Correlations with their intervals, a row each; one panel for each outcome, side by side.

   data: rows [name], panels [{title, values, low, high, clear, notes}] (null: there is none) */
"use strict";
(() => {
  const { text, distinct } = spiritlevel;
  const ROW = 21, AXIS = 62, ROOM = 0.05; // pixels of a row and of an axis; share between panels

  spiritlevel.kinds.forest = (element, data, theme) => {
    const stacked = element.clientWidth < 640;
    const count = data.panels.length;
    const panel = ROW * (data.rows.length + 1), height = stacked ? count * (panel + AXIS) : panel + AXIS;
    const side = place => { // from left to right, or from top to bottom
      const size = stacked ? panel / height : (1 - ROOM * (count - 1)) / count;
      const start = stacked ? 1 - size - AXIS / height - place * (panel + AXIS) / height : place * (size + ROOM);
      return [Math.max(0, start), Math.min(1, start + size)];
    };
    const layout = {};
    const traces = data.panels.flatMap((shown, place) => {
      const number = place ? String(place + 1) : "";
      layout[`xaxis${number}`] = {
        title: { text: text(shown.title) }, range: [-1.06, 1.06], tickvals: [-1, -0.5, 0, 0.5, 1],
        zeroline: true, zerolinecolor: theme.muted, zerolinewidth: 1.5, anchor: `y${number}`,
        side: "top",
        ...(stacked ? {} : { domain: side(place) }),
      };
      layout[`yaxis${number}`] = {
        range: [data.rows.length - 0.4, -0.6], tickvals: data.rows.map((_, i) => i), zeroline: false,
        ticktext: distinct(data.rows).map(text), showgrid: false, anchor: `x${number}`,
        showticklabels: stacked || !place, ...(stacked ? { domain: side(place) } : {}),
      };
      return [true, false].map(clear => {
        const here = data.rows.map((_, i) => i)
          .filter(i => shown.values[i] !== null && shown.clear[i] === clear);
        const colour = clear ? theme.palette[0] : theme.muted;
        const reach = (ends, sign) => here.map(i =>
          (ends[i] === null ? 0 : sign * (ends[i] - shown.values[i])));
        return {
          type: "scatter", mode: "markers", xaxis: `x${number}`, yaxis: `y${number}`, showlegend: false,
          x: here.map(i => shown.values[i]), y: here,
          marker: { size: 9, symbol: clear ? "circle" : "circle-open", color: colour, line: { width: 2, color: colour } },
          error_x: { type: "data", symmetric: false, array: reach(shown.high, 1),
                     arrayminus: reach(shown.low, -1), color: colour, thickness: 1.5, width: 0 },
          hovertext: here.map(i => `${text(data.rows[i])}<br>${text(shown.notes[i])}`), hoverinfo: "text",
        };
      });
    });
    const margin = { l: 8, r: 8, t: stacked ? 0 : AXIS, b: 0 };
    spiritlevel.draw(element, traces, { ...layout, height, margin, dragmode: false }, theme);
  };
})();
