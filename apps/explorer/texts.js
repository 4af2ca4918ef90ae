// The words on the page, in the language that is read. Both have the same keys; a test says so.
import {en} from "./texts_en.js";
import {zh} from "./texts_zh.js";

export const languages = {en, zh};
let current = "en";

export function useLanguage(chosen) {
  const wanted = chosen || (navigator.language ?? "en");
  current = wanted.toLowerCase().startsWith("zh") ? "zh" : "en";
  document.documentElement.lang = current === "zh" ? "zh-Hans" : "en";
  return current;
}

export function language() {
  return current;
}

// Words of a page that has more of them.
export function addTexts(english, chinese) {
  Object.assign(en, english);
  Object.assign(zh, chinese);
}

export function t(key, values = {}) {
  const text = languages[current][key];
  if (text === undefined) throw new Error(`no text for ${key}`);
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? values[name] : whole));
}
