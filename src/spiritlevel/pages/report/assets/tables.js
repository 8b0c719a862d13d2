/* Tables: sort by any column, filter by words, copy and download as CSV. */
"use strict";
(() => {
  const cellsOf = row => [...row.cells];
  const raw = cell => cell.dataset.value ?? cell.textContent;

  // Numbers before words, words in the reader's order, what is absent last either way.
  const key = cell => {
    if (cell.classList.contains("absent")) return null;
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  const order = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === "number") return -1;
    if (typeof b === "number") return 1;
    return a.localeCompare(b, "en", { numeric: true });
  };
  const absent = value => value === null || Number.isNaN(value);

  const sort = button => {
    const heading = button.closest("th");
    const body = heading.closest("table").tBodies[0];
    const column = heading.cellIndex;
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentElement.cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].map(row => ({ row, value: key(row.cells[column]) }));
    rows.sort((a, b) => {
      if (absent(a.value) || absent(b.value)) return absent(a.value) - absent(b.value);
      return down ? order(b.value, a.value) : order(a.value, b.value);
    });
    body.append(...rows.map(({ row }) => row));
  };

  const filter = input => {
    const box = input.closest(".table");
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    const rows = [...box.querySelector("table").tBodies[0].rows];
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      shown += !row.hidden;
    }
    box.querySelector(".count").textContent =
      words.length ? `${shown} of ${rows.length} rows` : `${rows.length} rows`;
  };

  // A spreadsheet would run a name that starts like a formula; an apostrophe makes it text.
  const harmless = text => (/^([=+@\t\r]|-(?!\d))/.test(text) ? `'${text}` : text);
  const quoted = text => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  // A number with an interval below it becomes three columns.
  const ends = cell => ["low", "high"].map(end => {
    const value = cell.dataset[end];
    return value === undefined || value === "NaN" ? "" : value;
  });
  const csv = table => {
    const body = [...table.tBodies[0].rows];
    const wide = cellsOf(table.tHead.rows[0]).map(th =>
      body.some(row => "low" in row.cells[th.cellIndex].dataset));
    const heads = cellsOf(table.tHead.rows[0]).flatMap((th, i) => {
      const title = harmless(th.textContent.trim());
      return wide[i] ? [title, `${title} low`, `${title} high`] : [title];
    });
    const rows = body.filter(row => !row.hidden).map(row => cellsOf(row).flatMap((cell, i) => {
      const more = wide[i] ? ends(cell) : [];
      if (cell.classList.contains("absent")) return ["", ...more];
      return ["value" in cell.dataset ? raw(cell) : harmless(cell.textContent.trim()), ...more];
    }));
    return [heads, ...rows].map(row => row.map(quoted).join(",")).join("\r\n") + "\r\n";
  };

  const download = box => {
    const url = URL.createObjectURL(new Blob([csv(box.querySelector("table"))], { type: "text/csv" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = `${box.id}.csv`;
    link.click();
    URL.revokeObjectURL(url);
  };

  const copy = async (box, button) => {
    const text = csv(box.querySelector("table"));
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no clipboard for a page opened from a file: the older way
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
    const before = button.dataset.label ?? button.textContent;
    button.dataset.label = before;
    button.textContent = done ? "Copied" : "Copying was refused";
    setTimeout(() => { button.textContent = before; }, 1500);
  };

  document.addEventListener("click", event => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.classList.contains("sort")) sort(button);
    else if (button.dataset.csv === "download") download(button.closest(".table"));
    else if (button.dataset.csv === "copy") copy(button.closest(".table"), button);
  });
  document.addEventListener("input", event => {
    if (event.target.matches(".table input[type=search]")) filter(event.target);
  });
  globalThis.spiritlevel.tables = { csv };
})();
