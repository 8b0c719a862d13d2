/* Measure by move: factors on a scale that is the same to both sides of "unchanged".

   data: {rows, columns, powers, texts, before, after, preserving}; powers are log10 of the factors,
   null where there is nothing to colour */
"use strict";
const MOST_POWERS = 3;
spiritlevel.kinds.matrix = (element, data, theme) => {
  const { text, number, shortened } = spiritlevel;
  const narrow = element.clientWidth < 560;
  // The moves that keep the function set the scale, and no further than a factor of 1000: a
  // temperature that turns a number to 1e-16 would leave all others white.
  const scaled = data.powers.flatMap(row => row.filter((_, j) => data.preserving[j]));
  const reach = Math.min(MOST_POWERS, Math.max(1, ...scaled.map(power => Math.abs(power ?? 0))));
  const hover = data.rows.map((row, i) => data.columns.map((column, j) =>
    `${text(row)}<br>${text(column)}<br>${number(data.before[i])} → ${number(data.after[i][j])}`));
  const shade = power => Math.max(-reach, Math.min(reach, power ?? 0)); // none: no change to be sure of
  const top = Math.floor(reach);
  const ticks = [-top, 0, top];
  const more = reach === MOST_POWERS ? " or more" : "";
  spiritlevel.draw(element, [{
    type: "heatmap",
    x: data.columns.map((_, j) => j), y: data.rows.map((_, i) => i),
    z: data.powers.map(row => row.map(shade)),
    hovertext: hover, hoverinfo: "text",
    colorscale: theme.diverging, zmin: -reach, zmax: reach, xgap: 2, ygap: 2,
    showscale: !narrow,
    colorbar: { thickness: 12, outlinewidth: 0, tickvals: ticks, title: { text: "factor" },
                ticktext: ticks.map(t => (t < 0 ? `÷ ${10 ** -t}${more}` : t ? `× ${10 ** t}${more}` : "1")) },
  }, {
    type: "scatter", mode: "text", hoverinfo: "skip", showlegend: false,
    x: data.rows.flatMap(() => data.columns.map((_, j) => j)),
    y: data.rows.flatMap((_, i) => data.columns.map(() => i)),
    text: data.texts.flat(),
    textfont: { size: narrow ? 10 : 13,
                color: data.powers.flat().map(p => spiritlevel.ink(theme.diverging, 0.5 + shade(p) / reach / 2)) },
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
