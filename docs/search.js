/* Search that also works where pages are opened from a folder: browsers give a page from a file
   neither a worker nor a JSON file. The index is a script, loaded when somebody first searches. It
   replaces the search/main.js of mkdocs, and uses the same elements of the page. */
"use strict";
document.addEventListener("DOMContentLoaded", () => { // the box for the words comes after this script
  const MOST = 30; // results
  const AROUND = 90; // characters shown on each side of what was found
  const input = document.getElementById("mkdocs-search-query");
  const list = document.getElementById("mkdocs-search-results");
  if (!input || !list) return;
  const root = base_url.endsWith("/") ? base_url : `${base_url}/`; // of the theme
  let asked = false;

  const load = () => {
    if (asked) return;
    asked = true;
    const script = document.createElement("script");
    script.src = `${root}search/index.js`;
    script.onload = show;
    document.head.append(script);
  };

  /* All words must occur, anywhere in a word: "preflight" finds sl.preflight. */
  const score = (doc, words) => {
    let total = 0;
    for (const word of words) {
      const inTitle = doc.lowTitle.includes(word);
      const inText = doc.lowText.includes(word);
      if (!inTitle && !inText) return 0;
      total += (doc.lowTitle === word ? 40 : 0) + (inTitle ? 20 : 0) + (inText ? 1 : 0);
    }
    return total + (doc.location.includes("experiments/") ? 0 : 0.5);
  };

  const summary = (doc, words) => {
    const at = Math.max(0, doc.lowText.indexOf(words[0]));
    const from = Math.max(0, at - AROUND);
    return `${from ? "… " : ""}${doc.text.slice(from, at + AROUND)} …`;
  };

  function show() {
    list.replaceChildren();
    const words = input.value.toLowerCase().split(/\s+/).filter(word => word.length > 1);
    if (!words.length || !window.spiritlevelIndex) return;
    const found = window.spiritlevelIndex
      .map(doc => ({ doc, points: score(doc, words) }))
      .filter(each => each.points > 0)
      .sort((a, b) => b.points - a.points)
      .slice(0, MOST);
    for (const { doc } of found) {
      const article = document.createElement("article");
      const heading = document.createElement("h3");
      const link = document.createElement("a");
      link.href = root + doc.location;
      link.textContent = doc.title;
      heading.append(link);
      const text = document.createElement("p");
      text.textContent = summary(doc, words);
      article.append(heading, text);
      list.append(article);
    }
    if (!found.length) {
      const none = document.createElement("p");
      none.textContent = list.dataset.noResultsText || "No results found";
      list.append(none);
    }
  }

  input.addEventListener("focus", load);
  input.addEventListener("input", () => { load(); show(); });
});
