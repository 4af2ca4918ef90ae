// One line for what went wrong, with a way on.
import {bytes, count, el} from "./format.js";
import {data, on, put} from "./store.js";
import {t} from "./texts.js";

function sentence(problem) {
  const say = {
    empty: () => t("problem_empty"),
    too_long: () => t("problem_too_long", {tokens: count(problem.tokens), context: count(problem.context)}),
    too_large: () => t("problem_too_large", {size: bytes(problem.size), limit: bytes(problem.limit)}),
    no_step: () => t("problem_no_step", problem),
    not_kept: () => t("problem_not_kept", problem),
    link: () => problem.parts.map(sentence).join(" "),
    link_version: () => t("problem_link_version"),
    link_broken: () => t("problem_link_broken", problem),
    model: () => t("problem_model", problem),
    back: () => t("lost_back"),
    diff_lengths: () => t("diff_lengths"),
    share_done: () => t("share_done"),
    export_part: () => t("export_part", problem),
    export_working: () => t("export_working", problem),
  }[problem.kind];
  return say ? say() : t("problem_other", {message: problem.message ?? problem.kind});
}

export function showBanner() {
  const banner = document.getElementById("banner");
  const draw = () => {
    const problem = data.problem;
    banner.hidden = !problem && !data.lost;
    banner.classList.toggle("calm", !data.lost && ["back", "share_done", "export_part", "export_working"].includes(problem?.kind));
    if (banner.hidden) return banner.replaceChildren();
    const close = el("button", {class: "plain", onclick: () => put({problem: null})}, t("dismiss"));
    banner.replaceChildren(el("span", {}, data.lost ? t("lost") : sentence(problem)), data.lost ? "" : close);
    if (!data.lost && ["back", "share_done"].includes(problem.kind))
      setTimeout(() => data.problem === problem && put({problem: null}), 4000);
  };
  on("problem lost words", draw);
  draw();
}
