/* Small tools. A name from a file becomes a text node, here and nowhere else: never markup. */
export const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.map(child => (child instanceof Node ? child : String(child))));
  return element;
};

export const number = value =>
  typeof value === "string" ? value : globalThis.spiritlevel.number(value);

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

export const duration = seconds => {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
};

export const settings = (axes, seed) =>
  [...Object.entries(axes), ["seed", seed]].map(([key, value]) => `${key} ${value}`).join(", ");

/* A table whose body can be filled anew while the reader's place in it stays. */
export const table = label => {
  const head = make("thead");
  const body = make("tbody");
  const scroll = make("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": label },
    make("table", {}, head, body));
  const fill = (columns, rows) => {
    head.replaceChildren(make("tr", {}, ...columns.map(column =>
      make("th", { scope: "col", class: column.text ? null : "number" }, make("span", {}, column.title)))));
    body.replaceChildren(...rows.map(row => make("tr", {}, ...row.map((cell, i) => {
      const wrong = cell === "failed" || cell === "nonfinite" || cell === "not_converged";
      const kind = columns[i].text ? (wrong ? "wrong short" : "short") : "number";
      return make("td", { class: kind }, columns[i].text ? cell ?? "–" : number(cell));
    }))));
  };
  return { element: scroll, fill };
};

export const facts = (element, pairs) => element.replaceChildren(...pairs.map(([name, value, key]) =>
  make("div", {}, make("dt", {}, ...(key ? [make("span", { class: `key ${key}` })] : []), name),
    make("dd", {}, make("b", {}, value)))));

/* Pictures: the last drawing of each is repeated in other colours and at another width. */
const drawings = new Map();
const repaint = element => {
  const drawing = drawings.get(element);
  drawing.width = element.clientWidth;
  drawing.paint(globalThis.spiritlevel.theme());
};
const sizes = new ResizeObserver(entries => {
  for (const { target } of entries) {
    if (!target.isConnected) { sizes.unobserve(target); drawings.delete(target); }
    else if (drawings.get(target).width !== target.clientWidth) repaint(target);
  }
});
export const draw = (element, paint) => {
  const known = drawings.has(element);
  drawings.set(element, { paint, width: 0 });
  repaint(element);
  if (!known) sizes.observe(element);
};
export const repaintAll = () => [...drawings.keys()].filter(element => element.isConnected).forEach(repaint);
