// Colours of weights (viridis), of differences (blue, zero, orange), and how a value becomes one.

const anchors = [
  [68, 1, 84], [72, 26, 108], [71, 47, 125], [65, 68, 135], [57, 86, 140], [49, 104, 142], [42, 120, 142],
  [35, 136, 142], [31, 152, 139], [34, 168, 132], [53, 183, 121], [84, 197, 104], [122, 209, 81], [165, 219, 54],
  [210, 226, 27], [253, 231, 37],
];

function table(at) {
  const colours = new Uint8Array(256 * 3);
  for (let n = 0; n < 256; ++n) colours.set(at(n / 255), n * 3);
  return colours;
}

function between(a, b, t) {
  return a.map((x, n) => Math.round(x + (b[n] - x) * t));
}

export const viridis = table((t) => {
  const x = t * (anchors.length - 1), n = Math.min(Math.floor(x), anchors.length - 2);
  return between(anchors[n], anchors[n + 1], x - n);
});

// t = 0.5 is zero: almost the page's own colour, so that only what differs is seen.
function diverging(middle) {
  return table((t) => t < 0.5 ? between([0, 92, 158], middle, Math.pow(t * 2, 0.9))
                              : between(middle, [214, 94, 0], Math.pow((t - 0.5) * 2, 0.9)));
}
const divergingLight = diverging([244, 243, 240]), divergingDark = diverging([38, 43, 48]);

export function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function differences() {
  return dark() ? divergingDark : divergingLight;
}

export function css(colours, t) {
  const n = Math.round(Math.max(0, Math.min(1, t)) * 255) * 3;
  return `rgb(${colours[n]},${colours[n + 1]},${colours[n + 2]})`;
}

// Ink that is read on the colour.
export function inkOn(colours, t) {
  const n = Math.round(Math.max(0, Math.min(1, t)) * 255) * 3;
  const light = 0.299 * colours[n] + 0.587 * colours[n + 1] + 0.114 * colours[n + 2];
  return light > 140 ? "#14171a" : "#ffffff";
}

// 0..1 to 0..1, by the curve that was chosen.
export function curve(kind, t) {
  if (!(t > 0)) return 0;
  const x = Math.min(t, 1);
  if (kind === "linear") return x;
  if (kind === "log") return Math.max(0, 1 + Math.log10(x) / 4);  // four decades
  return Math.sqrt(x);
}

// And back, for the legend.
export function uncurve(kind, t) {
  if (kind === "linear") return t;
  if (kind === "log") return t <= 0 ? 0 : Math.pow(10, (t - 1) * 4);
  return t * t;
}

export function theme(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
