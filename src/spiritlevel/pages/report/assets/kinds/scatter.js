/* A measure against an outcome, one point per run.

   data: runs [id], settings [{name, labels, index}], measures and targets [{name, title, values}],
         pairs [measure][target] {text, line, line_text, log_line?, log_line_text?} (computed before),
         chosen {measure, target, scale}, identity? (the name of a line y = x) */
"use strict";
(() => {
  const { text, number } = spiritlevel;
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down"];
  const CELLS = 18; // of the density, along each axis

  const wrapped = (title, width) => {
    const lines = [""];
    for (const word of title.split(" ")) {
      const last = lines.length - 1;
      if (lines[last] && lines[last].length + word.length > width / 8) lines.push(word);
      else lines[last] += (lines[last] ? " " : "") + word;
    }
    return lines.map(text).join("<br>");
  };

  const notPositive = values => values.filter(v => v !== null && v <= 0).length;
  const isLog = (state, values) => state.scale === "log" && notPositive(values) === 0;

  // Cells are even on the axis as it is drawn, so on a log axis they are even in the exponent.
  const density = (points, logX, logY, theme) => {
    const along = (values, log) => {
      const placed = log ? values.map(Math.log10) : values;
      const low = Math.min(...placed), high = Math.max(...placed);
      const step = (high - low) / CELLS || 1;
      const back = v => (log ? 10 ** v : v);
      return {
        place: placed.map(v => Math.min(CELLS - 1, Math.floor((v - low) / step))),
        edges: Array.from({ length: CELLS + 1 }, (_, i) => back(low + i * step)),
      };
    };
    const x = along(points.map(p => p.x), logX), y = along(points.map(p => p.y), logY);
    const counts = Array.from({ length: CELLS }, () => Array(CELLS).fill(null)); // empty: not painted
    points.forEach((_, i) => { counts[y.place[i]][x.place[i]] = (counts[y.place[i]][x.place[i]] ?? 0) + 1; });
    return {
      type: "heatmap", x: x.edges, y: y.edges, z: counts, colorscale: theme.sequential, zmin: 0,
      hovertemplate: "%{z} runs<extra></extra>", showlegend: false,
      colorbar: { title: { text: "runs", side: "right" }, thickness: 12, outlinewidth: 0 },
    };
  };

  const fitted = (points, coefficients, log) => {
    const xs = points.map(p => p.x);
    const low = Math.min(...xs), high = Math.max(...xs);
    const steps = Array.from({ length: 61 }, (_, i) => i / 60);
    const x = steps.map(s => (log ? low * (high / low) ** s : low + (high - low) * s));
    const [slope, intercept] = coefficients;
    return { x, y: x.map(v => intercept + slope * (log ? Math.log(v) : v)) };
  };

  // By least squares, as [slope, intercept]; null for fewer than 4 points or all at one place.
  const lineOf = (points, log) => {
    if (points.length < 4) return null;
    const xs = points.map(p => (log ? Math.log(p.x) : p.x)), ys = points.map(p => p.y);
    const mean = values => values.reduce((a, b) => a + b, 0) / values.length;
    const x = mean(xs), y = mean(ys);
    const spread = xs.reduce((sum, v) => sum + (v - x) ** 2, 0);
    if (!spread) return null;
    const slope = xs.reduce((sum, v, i) => sum + (v - x) * (ys[i] - y), 0) / spread;
    return [slope, y - slope * x];
  };

  const draw = (data, state, theme) => {
    const measure = data.measures[state.measure], target = data.targets[state.target];
    const setting = data.settings[state.colour];
    const logX = isLog(state, measure.values), logY = isLog(state, target.values);
    const points = data.runs
      .map((run, i) => ({ run, i, x: measure.values[i], y: target.values[i] }))
      .filter(p => p.x !== null && p.y !== null);
    const described = p => [
      text(p.run),
      ...data.settings.map(s => `${text(s.name)}: ${text(s.labels[s.index[p.i]])}`),
      `${text(measure.name)}: ${number(p.x)}`,
      `${text(target.name)}: ${number(p.y)}`,
    ].join("<br>");
    const dense = state.shown === "density" && points.length > 0;
    const size = points.length <= 150 ? 8 : state.plot.clientWidth < 560 ? 4 : 6;
    const traces = dense ? [density(points, logX, logY, theme)] : [];
    const groups = setting && !dense ? setting.labels : [null];
    groups.forEach((label, k) => {
      const here = points.filter(p => label === null || setting.index[p.i] === k);
      traces.push({
        type: "scatter", mode: "markers", x: here.map(p => p.x), y: here.map(p => p.y),
        name: label === null ? "runs" : text(label),
        text: here.map(described), hoverinfo: "text", showlegend: label !== null,
        marker: dense ? { size: 3, color: theme.muted, opacity: 0.7 }
          : { size, color: theme.palette[k % theme.palette.length], opacity: 0.85,
              symbol: SYMBOLS[(k + Math.floor(k / theme.palette.length)) % SYMBOLS.length], line: { width: 0.5, color: theme.background } },
        legendgroup: `group ${k}`,
      });
      const own = label === null ? null : lineOf(here, logX);
      if (own) {
        traces.push({ type: "scatter", mode: "lines", ...fitted(here, own, logX), showlegend: false,
                      line: { color: theme.palette[k % theme.palette.length], width: 1.5 },
                      hoverinfo: "skip", legendgroup: `group ${k}` });
      }
    });
    const pair = data.pairs[state.measure][state.target];
    const straight = logX ? pair.log_line : pair.line;
    const lineText = logX ? pair.log_line_text : pair.line_text;
    if (straight && points.length) {
      traces.push({ type: "scatter", mode: "lines", name: "least squares", ...fitted(points, straight, logX),
                    line: { color: theme.text, width: 2, dash: "dash" }, hoverinfo: "skip" });
    }
    if (data.identity && points.length) {
      const all = points.flatMap(p => [p.x, p.y]).filter(v => !logX || v > 0);
      const ends = [Math.min(...all), Math.max(...all)];
      traces.push({ type: "scatter", mode: "lines", name: text(data.identity), x: ends, y: ends,
                    line: { color: theme.accent, width: 2 }, hoverinfo: "skip" });
    }
    const range = values => { // the line may leave the points far behind: they decide what is seen
      const low = Math.min(...values), high = Math.max(...values), room = (high - low) * 0.06 || 1;
      return [low - room, high + room];
    };
    const seen = (values, log) => (values.length ? range(log ? values.map(Math.log10) : values) : [0, 1]);
    spiritlevel.draw(state.plot, traces, {
      xaxis: { title: { text: wrapped(measure.title, state.plot.clientWidth - 90) },
               type: logX ? "log" : "linear", range: seen(points.map(p => p.x), logX) },
      yaxis: { title: { text: wrapped(target.title, 320) }, type: logY ? "log" : "linear",
               range: seen(points.map(p => p.y), logY) },
      legend: { title: { text: setting ? text(setting.name) : "", side: "top" } },
      height: 400 + spiritlevel.legendHeight(traces, state.plot.clientWidth),
    }, theme);
    const kept = [[measure, logX], [target, logY]].filter(([, log]) => state.scale === "log" && !log)
      .map(([column]) => `The axis of ${column.name} stays linear: ${notPositive(column.values)} of its ` +
        `${column.values.filter(v => v !== null).length} values are not positive, and a log axis would leave them out.`);
    state.said.textContent = [`${measure.name} and ${target.name}: ${pair.text}`, lineText, ...kept].join(" ");
  };

  const start = data => ({ ...data.chosen, colour: 0, shown: "points" });
  const add = (data, state, { choose, press }) => {
    const sets = key => value => { state[key] = value; };
    const names = columns => columns.map(column => column.name);
    choose("Measure", names(data.measures), state.measure, sets("measure"));
    choose("Outcome", names(data.targets), state.target, sets("target"));
    choose("Colour by", names(data.settings), state.colour, sets("colour"));
    press("Axes", [["linear", "Linear"], ["log", "Log"]], state.scale, sets("scale"));
    press("Show", [["points", "Points"], ["density", "Density"]], state.shown, sets("shown"));
  };

  spiritlevel.controlled("scatter", draw, start, add);
})();
