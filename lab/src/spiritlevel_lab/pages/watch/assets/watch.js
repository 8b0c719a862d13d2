/* Asks for the state again and again; draws only when it is another one. */
import { repaintAll } from "./dom.js";
import { showMonitors } from "./monitor.js";
import { showStudy, tick } from "./study.js";

const BUSY = 1000, IDLE = 2000; // milliseconds
const at = id => document.getElementById(id);
let tag = "", measure = "", timer = 0, turn = 0;

const pulse = (state, text) => {
  if (at("pulse").textContent !== text) at("pulse").textContent = text; // a reader's software says it once
  at("pulse").dataset.state = state;
};

const show = state => {
  document.title = `${state.title} · spiritlevel watch`;
  at("title").textContent = state.title;
  at("path").textContent = state.path;
  at("lead").textContent = state.study?.description ?? "";
  at("waiting").hidden = state.waiting === "";
  at("why").textContent = state.waiting;
  showStudy(at("study"), state.study, choose);
  showMonitors(at("monitors"), state.monitors);
  pulse(state.waiting ? "waiting" : "live", state.waiting ? "waiting" : "live");
};

const ask = async () => {
  clearTimeout(timer);
  const mine = ++turn;
  let wait = IDLE;
  try {
    const headers = tag ? { "If-None-Match": tag } : {};
    const response = await fetch(`/state.json?measure=${encodeURIComponent(measure)}`, { headers, cache: "no-store" });
    if (mine !== turn) return; // asked again meanwhile
    if (response.status === 200) {
      const state = await response.json();
      if (mine !== turn) return;
      tag = response.headers.get("ETag") ?? "";
      show(state);
      wait = BUSY;
    } else if (response.status === 304) {
      tick();
      const text = at("waiting").hidden ? "live" : "waiting";
      pulse(text, text);
    } else {
      tag = "";
      pulse("lost", await response.text());
    }
  } catch (error) {
    if (mine !== turn) return;
    tag = "";
    const refused = error instanceof TypeError && /fetch/i.test(error.message);
    pulse("lost", refused ? "no answer: is `spiritlevel watch` still running?" : `the page failed: ${error.message}`);
  }
  if (mine === turn && !document.hidden) timer = setTimeout(ask, wait);
};

const choose = name => {
  measure = name;
  ask();
};

document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
new MutationObserver(repaintAll).observe(document.documentElement, { attributeFilter: ["data-theme"] });
ask();
