// One drawing, two surfaces: a canvas on the screen and in PNG files, elements in SVG files.
import {theme} from "./colours.js";

const sans = 'system-ui, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif';

export class CanvasPainter {
  constructor(canvas, width, height, ratio = devicePixelRatio || 1) {
    const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
    if (canvas.width !== w || canvas.height !== h) canvas.width = w, canvas.height = h;
    this.to = canvas.getContext("2d");
    this.to.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.to.clearRect(0, 0, width, height);
    this.width = width, this.height = height;
  }
  rect(x, y, w, h, colour, {alpha = 1, radius = 0} = {}) {
    this.to.globalAlpha = alpha;
    this.to.fillStyle = colour;
    if (radius > 0 && this.to.roundRect) {
      this.to.beginPath();
      this.to.roundRect(x, y, w, h, radius);
      this.to.fill();
    } else this.to.fillRect(x, y, w, h);
    this.to.globalAlpha = 1;
  }
  frame(x, y, w, h, colour, {width = 1, radius = 0, dash = null} = {}) {
    this.to.strokeStyle = colour;
    this.to.lineWidth = width;
    this.to.setLineDash(dash ?? []);
    this.to.beginPath();
    if (this.to.roundRect) this.to.roundRect(x, y, w, h, radius);
    else this.to.rect(x, y, w, h);
    this.to.stroke();
    this.to.setLineDash([]);
  }
  line(x0, y0, x1, y1, colour, {width = 1, alpha = 1, dash = null} = {}) {
    this.path([[x0, y0], [x1, y1]], colour, {width, alpha, dash});
  }
  path(points, colour, {width = 1, alpha = 1, dash = null} = {}) {
    this.to.globalAlpha = alpha;
    this.to.strokeStyle = colour;
    this.to.lineWidth = width;
    this.to.setLineDash(dash ?? []);
    this.to.lineJoin = "round";
    this.to.beginPath();
    points.forEach(([x, y], n) => (n ? this.to.lineTo(x, y) : this.to.moveTo(x, y)));
    this.to.stroke();
    this.to.setLineDash([]);
    this.to.globalAlpha = 1;
  }
  measure(text, size, weight = 400) {
    this.to.font = `${weight} ${size}px ${sans}`;
    return this.to.measureText(text).width;
  }
  // From left to right, leaving and arriving level.
  curve(x0, y0, x1, y1, colour, {width = 1, alpha = 1} = {}) {
    const middle = (x0 + x1) / 2;
    this.to.globalAlpha = alpha;
    this.to.strokeStyle = colour;
    this.to.lineWidth = width;
    this.to.beginPath();
    this.to.moveTo(x0, y0);
    this.to.bezierCurveTo(middle, y0, middle, y1, x1, y1);
    this.to.stroke();
    this.to.globalAlpha = 1;
  }
  circle(x, y, r, colour) {
    this.to.fillStyle = colour;
    this.to.beginPath();
    this.to.arc(x, y, r, 0, 2 * Math.PI);
    this.to.fill();
  }
  text(text, x, y, {size = 12, colour = theme("ink"), align = "left", angle = 0, weight = 400, room = Infinity} = {}) {
    const to = this.to;
    to.save();
    to.translate(x, y);
    if (angle) to.rotate(angle);
    to.font = `${weight} ${size}px ${sans}`;
    to.textAlign = align;
    to.textBaseline = "middle";
    to.fillStyle = colour;
    to.fillText(room === Infinity ? text : this.cut(text, room), 0, 0);
    to.restore();
  }
  cut(text, room) {
    if (this.to.measureText(text).width <= room) return text;
    const letters = [...text];
    while (letters.length > 1 && this.to.measureText(letters.join("") + "…").width > room) letters.pop();
    return letters.join("") + "…";
  }
  hatch(x, y, w, h, colour) {
    const to = this.to;
    to.save();
    to.beginPath();
    to.rect(x, y, w, h);
    to.clip();
    to.strokeStyle = colour;
    to.lineWidth = 1;
    to.beginPath();
    for (let d = -h; d < w; d += 7) to.moveTo(x + d, y + h), to.lineTo(x + d + h, y);
    to.stroke();
    to.restore();
  }
  image(sheet, x, y, w, h) {
    this.to.imageSmoothingEnabled = false;
    this.to.drawImage(sheet, x, y, w, h);
  }
}

const escape = (text) => String(text).replace(/[&<>"]/g, (c) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[c])
  .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "");
const n = (x) => Number(x.toFixed(2));

export class SvgPainter {
  constructor(width, height) {
    this.width = width, this.height = height, this.parts = [], this.hatches = 0;
    this.ruler = new OffscreenCanvas(1, 1).getContext("2d");
  }
  rect(x, y, w, h, colour, {alpha = 1, radius = 0} = {}) {
    this.parts.push(`<rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" fill="${colour}"` +
      `${radius ? ` rx="${n(radius)}"` : ""}${alpha < 1 ? ` opacity="${n(alpha)}"` : ""}/>`);
  }
  frame(x, y, w, h, colour, {width = 1, radius = 0, dash = null} = {}) {
    this.parts.push(`<rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" fill="none" stroke="${colour}" ` +
      `stroke-width="${width}"${radius ? ` rx="${n(radius)}"` : ""}${dash ? ` stroke-dasharray="${dash}"` : ""}/>`);
  }
  line(x0, y0, x1, y1, colour, {width = 1, alpha = 1, dash = null} = {}) {
    this.path([[x0, y0], [x1, y1]], colour, {width, alpha, dash});
  }
  path(points, colour, {width = 1, alpha = 1, dash = null} = {}) {
    const d = points.map(([x, y], at) => `${at ? "L" : "M"}${n(x)} ${n(y)}`).join("");
    this.parts.push(`<path d="${d}" fill="none" stroke="${colour}" stroke-width="${n(width)}" opacity="${n(alpha)}"` +
      `${dash ? ` stroke-dasharray="${dash}"` : ""}/>`);
  }
  measure(text, size, weight = 400) {
    this.ruler.font = `${weight} ${size}px ${sans}`;
    return this.ruler.measureText(text).width;
  }
  curve(x0, y0, x1, y1, colour, {width = 1, alpha = 1} = {}) {
    const m = n((x0 + x1) / 2);
    this.parts.push(`<path d="M${n(x0)} ${n(y0)}C${m} ${n(y0)} ${m} ${n(y1)} ${n(x1)} ${n(y1)}" fill="none" stroke="${colour}" ` +
      `stroke-width="${n(width)}" opacity="${n(alpha)}"/>`);
  }
  circle(x, y, r, colour) {
    this.parts.push(`<circle cx="${n(x)}" cy="${n(y)}" r="${n(r)}" fill="${colour}"/>`);
  }
  text(text, x, y, {size = 12, colour = theme("ink"), align = "left", angle = 0, weight = 400, room = Infinity} = {}) {
    this.ruler.font = `${weight} ${size}px ${sans}`;
    let fitting = text;
    if (room !== Infinity && this.ruler.measureText(text).width > room) {
      const letters = [...text];
      while (letters.length > 1 && this.ruler.measureText(letters.join("") + "…").width > room) letters.pop();
      fitting = letters.join("") + "…";
    }
    const anchor = {left: "start", center: "middle", right: "end"}[align];
    this.parts.push(`<text transform="translate(${n(x)} ${n(y)})${angle ? ` rotate(${n(angle * 180 / Math.PI)})` : ""}" font-size="${size}" ` +
      `font-weight="${weight}" text-anchor="${anchor}" dominant-baseline="central" fill="${colour}">${escape(fitting)}</text>`);
  }
  hatch(x, y, w, h, colour) {
    const id = `h${++this.hatches}`;
    this.parts.push(`<pattern id="${id}" width="7" height="7" patternUnits="userSpaceOnUse"><path d="M0 7L7 0" stroke="${colour}"/></pattern>` +
      `<rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" fill="url(#${id})"/>`);
  }
  image(picture, x, y, w, h) {
    const sheet = document.createElement("canvas");
    sheet.width = picture.width, sheet.height = picture.height;
    sheet.getContext("2d").drawImage(picture, 0, 0);
    this.parts.push(`<image x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" preserveAspectRatio="none" ` +
      `style="image-rendering:pixelated" href="${sheet.toDataURL("image/png")}"/>`);
  }
  toString(description) {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}" ` +
      `font-family='${escape(sans).replace(/&quot;/g, "&quot;")}'><title>${escape(description)}</title>` +
      `<rect width="100%" height="100%" fill="${theme("panel")}"/>${this.parts.join("\n")}</svg>\n`;
  }
}
