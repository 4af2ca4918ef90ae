// Starts the page: the state from the address, the views, then the numbers.
import {announce} from "./spoken.js";
import {attachKeys} from "./keys.js";
import {showBanner} from "./banner.js";
import {showGrid} from "./grid.js";
import {showHead} from "./head.js";
import {showInspector} from "./inspector.js";
import {showNext} from "./next.js";
import {showPattern} from "./pattern.js";
import {showPrompt} from "./prompt.js";
import {showStrip} from "./strip.js";
import {showSwitches} from "./switches.js";
import {showTabs} from "./tabs.js";
import {showTimeline} from "./timeline.js";
import {showTraining} from "./training.js";
import {decode, encode, version} from "./permalink.js";
import {applyTheme, remember, remembered} from "./preferences.js";
import {openSource} from "./source.js";
import {start} from "./loader.js";
import {data, defaults, on, put, set, state} from "./store.js";
import {t, useLanguage} from "./texts.js";

// What of a link could not be used, all of it.
function reportLink(link) {
  const name = data.about?.model.name, parts = [];
  if (!["", null, version].includes(link.version)) parts.push({kind: "link_version"});
  if (link.broken.length) parts.push({kind: "link_broken", fields: link.broken.join(", ")});
  if (link.model && name && link.model !== name && data.live) parts.push({kind: "model", other: link.model, name});
  if (parts.length) put({problem: {kind: "link", parts}});
}

async function readAddress() {
  const link = await decode(location.hash);
  reportLink(link);
  return link;
}

let written = location.hash;
async function writeAddress() {
  const fragment = `#${await encode(state, data.about?.model.name)}`;
  if (fragment === written) return;
  written = fragment;
  try {
    history.replaceState(null, "", fragment);
  } catch {
    // an address in a notebook's frame cannot be changed
  }
}

function showAll() {
  document.title = t("title");
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text);
  for (const show of [showHead, showPrompt, showStrip, showSwitches, showTabs, showGrid, showPattern, showNext,
                      showInspector, showTimeline, showTraining, showBanner]) show();
}

// For the console, and for tests.
window.explorer = {state, data, set};

async function main() {
  const source = openSource();
  const link = await readAddress();
  if (!source.live) source.choose(link.state.part ?? 0);
  Object.assign(state, {lang: remembered("lang"), theme: remembered("theme")}, source.state ?? {}, link.state);
  useLanguage(state.lang);
  applyTheme(state.theme);
  showAll();
  attachKeys();
  announce();
  on("lang", () => {
    remember("lang", state.lang);
    useLanguage(state.lang);
    put({words: state.lang});
    document.title = t("title");
    for (const node of document.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text);
  });
  on("theme", () => {
    remember("theme", state.theme);
    applyTheme(state.theme);
    put({look: state.theme});
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => put({look: "system"}));
  let later = 0;
  on(Object.keys(defaults).join(" "), () => {
    clearTimeout(later);
    later = setTimeout(writeAddress, 200);
  });
  addEventListener("hashchange", async () => {
    if (location.hash === written) return;
    written = location.hash;
    const next = await readAddress();
    set({...structuredClone(defaults), text: data.about?.example ?? "", lang: state.lang, theme: state.theme, ...next.state});
  });
  let unchecked = link;  // against the model, which is known later
  on("about", () => {
    if (!data.about || !unchecked) return;
    reportLink(unchecked);
    unchecked = null;
  });
  await start(source, "text" in link.state);
  document.documentElement.dataset.ready = "true";
}

main();
