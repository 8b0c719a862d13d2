/* Before anything is painted: the reader's choice, else the system's. */
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("spiritlevel-theme");
  } catch { /* a page opened from a file may have no storage */ }
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
