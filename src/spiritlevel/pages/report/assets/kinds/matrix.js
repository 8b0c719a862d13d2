/* Measure by move: factors on a scale that is the same to both sides of "unchanged".

   data: {rows, columns, powers, texts, before, after, preserving}; powers are log10 of the factors,
   null where there is nothing to colour */
"use strict";
spiritlevel.kinds.matrix = (element, data, theme) => {
  const { text, number, shortened } = spiritlevel;
  const narrow = element.clientWidth < 560;
  const reach = Math.max(1, ...data.powers.flat().map(power => Math.abs(power ?? 0)));
  const hover = data.rows.map((row, i) => data.columns.map((column, j) =>
    `${text(row)}<br>${text(column)}<br>${number(data.before[i])} → ${number(data.after[i][j])}`));
  const top = Math.floor(reach);
  const ticks = [-top, 0, top];
  spiritlevel.draw(element, [{
    type: "heatmap",
    x: data.columns.map((_, j) => j), y: data.rows.map((_, i) => i),
    z: data.powers.map(row => row.map(power => power ?? 0)), // no change, or none to be sure of
    hovertext: hover, hoverinfo: "text",
    colorscale: theme.diverging, zmin: -reach, zmax: reach, xgap: 2, ygap: 2,
    showscale: !narrow,
    colorbar: { thickness: 12, outlinewidth: 0, tickvals: ticks, title: { text: "factor" },
                ticktext: ticks.map(t => (t < 0 ? `÷ ${10 ** -t}` : t ? `× ${10 ** t}` : "1")) },
  }, {
    type: "scatter", mode: "text", hoverinfo: "skip", showlegend: false,
    x: data.rows.flatMap(() => data.columns.map((_, j) => j)),
    y: data.rows.flatMap((_, i) => data.columns.map(() => i)),
    text: data.texts.flat(),
    textfont: { size: narrow ? 10 : 13,
                color: data.powers.flat().map(p => spiritlevel.ink(theme.diverging, 0.5 + (p ?? 0) / reach / 2)) },
  }], {
    height: 130 + 28 * data.rows.length,
    xaxis: { side: "top", range: [-0.5, data.columns.length - 0.5], tickangle: narrow ? -90 : 0, showgrid: false, zeroline: false,
             tickvals: data.columns.map((_, j) => j),
             ticktext: data.columns.map((name, j) =>
               text(`${shortened(name)}${data.preserving[j] ? "" : "*"}`).replaceAll("_", narrow ? "_" : "<br>")) },
    yaxis: { range: [data.rows.length - 0.5, -0.5], showgrid: false, zeroline: false, tickvals: data.rows.map((_, i) => i),
             ticktext: data.rows.map(name => text(shortened(name))) },
    margin: { t: 60 },
  }, theme);
};
