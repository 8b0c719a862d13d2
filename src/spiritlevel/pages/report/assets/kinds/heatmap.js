/* A matrix of numbers as colours.

   data: rows [name], columns [name], values [row][column] (null: empty), notes? [row][column] (words
         shown with the number), range [low, high], scale "diverging" | "sequential", title */
"use strict";
(() => {
  const { text, number } = spiritlevel;
  const WRITTEN = 12; // columns up to which the numbers fit into their cells

  spiritlevel.kinds.heatmap = (element, data, theme) => {
    const described = data.values.map((row, i) => row.map((value, j) => [
      text(data.rows[i]), text(data.columns[j]), `${text(data.title)}: ${number(value)}`,
      ...(data.notes ? [text(data.notes[i][j])] : []),
    ].join("<br>")));
    const narrow = element.clientWidth < 560;
    const rows = data.rows.map((_, i) => i), columns = data.columns.map((_, i) => i);
    const [low, high] = data.range;
    const scale = theme[data.scale];
    const traces = [{
      type: "heatmap", x: columns, y: rows, z: data.values, zmin: low, zmax: high,
      colorscale: scale, text: described, hoverinfo: "text", xgap: 1, ygap: 1,
      colorbar: { title: { text: text(data.title), side: narrow ? "top" : "right" }, thickness: 12,
                  outlinewidth: 0, ...(narrow ? { orientation: "h", y: 1.02, yanchor: "bottom" } : {}) },
    }];
    if (!narrow && data.columns.length <= WRITTEN) {
      const cells = rows.flatMap(i => columns.map(j => ({ i, j, z: data.values[i][j] })))
        .filter(cell => cell.z !== null);
      traces.push({
        type: "scatter", mode: "text", x: cells.map(c => c.j), y: cells.map(c => c.i), hoverinfo: "skip",
        text: cells.map(c => c.z.toFixed(2).replace("-", "−")), showlegend: false,
        textfont: { size: 11, color: cells.map(c => spiritlevel.ink(scale, (c.z - low) / (high - low))) },
      });
    }
    // Too many names for a narrow screen: columns are numbered, and the rows bear the numbers.
    const tight = narrow && data.columns.length > 14;
    const counted = tight && data.rows.join("\n") === data.columns.join("\n");
    const ticks = tight ? columns.filter(i => (i + 1) % 5 === 0) : columns;
    const size = narrow ? 9 : data.rows.length > 20 ? 10 : 12;
    spiritlevel.draw(element, traces, {
      // Names stand at numbered places: two rows of one name stay two rows.
      xaxis: { tickvals: ticks, tickfont: { size }, tickangle: tight ? 0 : -90,
               ticktext: ticks.map(i => (tight ? i + 1 : text(data.columns[i]))), showgrid: false, zeroline: false,
               range: [-0.5, columns.length - 0.5] },
      yaxis: { tickvals: rows, tickfont: { size },
               ticktext: data.rows.map((name, i) => text(name) + (counted ? `  ${i + 1}` : "")),
               showgrid: false, zeroline: false, range: [rows.length - 0.5, -0.5] },
      height: narrow ? 290 + data.rows.length * 14 : 190 + data.rows.length * 22,
    }, theme);
  };
})();
