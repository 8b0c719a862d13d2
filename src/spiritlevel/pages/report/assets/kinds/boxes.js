/* Boxes from numbers that were computed before; setting and quantity are chosen above.

   data: controls [{label, options}] of the setting and of the quantity, y_titles [quantity] [line],
         views {"i,j": [{name, n, five: [smallest, quarter, median, three quarters, largest]}]} */
"use strict";
(() => {
  const { text, number } = spiritlevel;
  const PARTS = ["smallest", "quarter", "median", "3 quarters", "largest"];

  const draw = (data, state, theme) => {
    const boxes = data.views[state.chosen.join(",")] ?? [];
    const [setting, quantity] = state.chosen;
    const left = boxes.filter(box => box.five[0] <= 0).length;
    const log = state.scale === "log" && left === 0;
    const places = boxes.map((_, i) => i);
    const part = i => boxes.map(box => box.five[i]);
    const traces = [{
      type: "box", x: places, lowerfence: part(0), q1: part(1), median: part(2), q3: part(3),
      upperfence: part(4), fillcolor: `${theme.palette[0]}33`, line: { color: theme.palette[0], width: 2 },
      width: 0.5, hoverinfo: "skip", showlegend: false,
    }, { // boxes drawn from five numbers answer a pointer badly: an unseen point does
      type: "scatter", mode: "markers", x: places, y: part(2), showlegend: false,
      marker: { size: 28, opacity: 0, color: theme.palette[0] }, hoverinfo: "text",
      text: boxes.map(box => [
        `${text(data.controls[0].options[setting])}: ${text(box.name)}`, `n = ${box.n}`,
        ...box.five.map((value, i) => `${PARTS[i]}: ${number(value)}`),
      ].join("<br>")),
    }];
    spiritlevel.draw(state.plot, traces, {
      xaxis: { title: { text: text(data.controls[0].options[setting]) }, tickvals: places, showgrid: false,
               zeroline: false, ticktext: boxes.map(box => `${text(box.name)}<br>n = ${box.n}`),
               range: [-0.6, boxes.length - 0.4] },
      yaxis: { title: { text: data.y_titles[quantity].map(text).join("<br>") }, type: log ? "log" : "linear" },
    }, theme);
    const none = boxes.length ? "" : "No run has a finite number here.";
    state.said.textContent = state.scale === "log" && !log
      ? `The axis stays linear: ${left} of ${boxes.length} boxes reach down to numbers that are not positive.` : none;
  };

  spiritlevel.controlled("boxes", draw);
})();
