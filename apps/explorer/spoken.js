// What a screen reader hears when the choice changes.
import {label, percent} from "./format.js";
import {rowOf} from "./weights.js";
import {data, headOf, keyTokens, length, on, state} from "./store.js";
import {t} from "./texts.js";

export function announce() {
  const spoken = document.getElementById("spoken");
  let last = "";
  on("map query layer head", () => {
    if (!data.run || state.query === null || !data.map) return;
    const head = headOf(state.layer, state.head), row = rowOf(state.query);
    const parts = [];
    const place = `${state.layer}.${state.head}`;
    if (head?.type && place !== last)
      parts.push(t("head_said", {layer: state.layer, head: state.head, type: t(`type_${head.type}`), score: head.score.toFixed(2)}));
    last = place;
    if (row) {
      const top = [...row.values].map((w, n) => [w, n + row.first]).filter(([w]) => w > 0).sort((a, b) => b[0] - a[0]).slice(0, 3);
      const list = top.map(([w, n]) => `“${label(keyTokens()[n])}” ${percent(w)}`).join(", ");
      parts.push(t("token_said", {n: state.query + 1, all: length(), token: label(data.run.tokens[state.query]), list}));
    }
    spoken.textContent = parts.join(" ");
  });
}
