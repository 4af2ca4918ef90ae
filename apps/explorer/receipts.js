// The small print of a panel: what can be checked, and how the numbers were made.
import {el, milliseconds, number} from "./format.js";
import {t} from "./texts.js";

export function receipt(...parts) {
  const list = el("dl", {class: "receipt"});
  for (const [name, value, kind] of parts.filter(Boolean))
    list.append(el("div", {"data-receipt": kind ?? name}, el("dt", {}, name), el("dd", {}, value)));
  return list;
}

export function cellReceipt(cell) {
  const missing = 1 - cell.row.sum, most = Math.log(Math.max(cell.row.visible, 1));
  return receipt(
    [t("receipt_sum"), number(cell.row.sum, 7), "sum"],
    Math.abs(missing) > 1e-5 ? [t("receipt_missing"), number(missing), "missing"] : null,
    [t("receipt_entropy"), `${number(cell.row.entropy, 5)} ${t("receipt_of", {max: number(most, 3)})}`, "entropy"],
    cell.row.max_error === null ? null : [t("receipt_error"), number(cell.row.max_error, 2), "error"],
    [t("receipt_kernel"), `${cell.kernel}, ${cell.dtype}`, "kernel"],
    cell.ms === null ? null : [t("receipt_time"), milliseconds(cell.ms), "time"]);
}
