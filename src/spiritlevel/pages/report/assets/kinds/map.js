/* The loss on a plane through the weights, by its contours.

   data: {x, y, z: [row of y][column of x], titles: [x, y, z], marks: [[name, x, y]]};
   z is null where it is not finite; by decades where it spans them */
"use strict";
const DECADES_FROM = 20; // largest over smallest number
spiritlevel.kinds.map = (element, data, theme) => {
  const { text, number } = spiritlevel;
  const [across, upwards, height] = data.titles.map(text);
  const known = data.z.flat().filter(value => value !== null);
  const log = Math.min(...known) > 0 && Math.max(...known) / Math.min(...known) >= DECADES_FROM;
  const scaled = value => (value === null ? null : log ? Math.log10(value) : value);
  const [low, high] = [Math.min(...known), Math.max(...known)].map(scaled);
  const ticks = log ? [0, 0.25, 0.5, 0.75, 1].map(part => low + part * (high - low)) : undefined;
  const hover = data.z.map((row, j) => row.map((value, i) =>
    `${across}: ${number(data.x[i])}<br>${upwards}: ${number(data.y[j])}<br>${height}: ${number(value)}`));
  spiritlevel.draw(element, [{
    type: "contour", x: data.x, y: data.y, z: data.z.map(row => row.map(scaled)),
    colorscale: theme.sequential, hovertext: hover, hoverinfo: "text", ncontours: 12,
    colorbar: { title: { text: height }, thickness: 12, outlinewidth: 0, tickvals: ticks,
                ticktext: ticks?.map(power => number(Number((10 ** power).toPrecision(2)))) },
  }, {
    type: "scatter", mode: "markers+text", hoverinfo: "skip", showlegend: false,
    x: data.marks.map(mark => mark[1]), y: data.marks.map(mark => mark[2]),
    text: data.marks.map(mark => text(mark[0])), textposition: "top center",
    textfont: { color: "#ffffff" },
    marker: { symbol: "star", size: 11, color: "#ffffff", line: { width: 1, color: "#000000" } },
  }], {
    height: 460,
    xaxis: { title: { text: across }, zeroline: false },
    yaxis: { title: { text: upwards }, zeroline: false },
  }, theme);
};
