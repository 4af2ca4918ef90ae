// The text that is read, as it is typed.
import {count, el} from "./format.js";
import {data, on, set, state} from "./store.js";
import {t} from "./texts.js";

const examples = [
  "The capital of France is Paris. The capital of Japan is Tokyo. The capital of Italy is",
  "The keys to the cabinet are on the table. The cat that chased the mice was tired, so the cat",
  "def add(a, b):\n    return a + b\n\ndef multiply(a, b):\n    return a *",
  "从前有一只小猫，它喜欢鱼。有一天，小猫",
];

const longest = 5000;  // characters in the box

export function showPrompt() {
  const box = document.getElementById("prompt");
  const area = el("textarea", {id: "text", rows: "1", spellcheck: "false", dir: "auto", autocomplete: "off"});
  const name = el("label", {for: "text"}), tokens = el("span", {class: "count"});
  const choice = el("select", {id: "example"});
  box.append(name, area, tokens, choice);

  // Of a long text the box holds the beginning: browsers need minutes to lay out megabytes.
  const fill = (text) => {
    area.value = text.length > longest ? text.slice(0, longest) : text;
    box.classList.toggle("cut", text.length > longest);
    grow();
  };
  const grow = () => {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, 96)}px`;
  };
  let later = 0;
  area.addEventListener("paste", (event) => {
    const pasted = event.clipboardData?.getData("text/plain") ?? "";
    if (area.value.length + pasted.length <= longest) return;
    event.preventDefault();
    const text = area.value.slice(0, area.selectionStart) + pasted + area.value.slice(area.selectionEnd);
    fill(text);
    set({text, generated: [], shown: null});
  });
  area.addEventListener("input", () => {
    box.classList.remove("cut");
    grow();
    clearTimeout(later);
    later = setTimeout(() => set({text: area.value, generated: [], shown: null}), area.value.length > 4000 ? 700 : 180);
  });
  choice.addEventListener("change", () => {
    if (choice.value !== "") set({text: examples[Number(choice.value)], generated: [], shown: null, window: null});
    choice.value = "";
  });
  const words = () => {
    name.textContent = t("text_label");
    area.placeholder = t("text_hint");
    choice.setAttribute("aria-label", t("example"));
    choice.replaceChildren(el("option", {value: ""}, t("example")),
                           ...examples.map((text, n) => el("option", {value: n}, text.slice(0, 44) + "…")));
  };
  on("text", () => {
    if (area.value !== state.text.slice(0, longest)) fill(state.text);
  });
  on("run words", () => (tokens.textContent = data.run ? t("tokens", {n: count(data.run.tokens.length)}) : ""));
  on("words", words);
  on("live", () => (area.readOnly = data.live === false, choice.hidden = data.live === false));
  words();
  fill(state.text);
}
