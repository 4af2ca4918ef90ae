// Binary answers: frames of a JSON head and numbers behind it; a map may come as several, rows by rows.
// "AEX1", u32 bytes of the head, the head, the numbers, padded to 4 bytes; little-endian.

const kinds = {u8: Uint8Array, f32: Float32Array};

export class FrameError extends Error {}

// The frame that begins at `from`, or null when more bytes are needed.
export function readFrame(bytes, from = 0) {
  if (bytes.length - from < 8) return null;
  if (bytes[from] !== 65 || bytes[from + 1] !== 69 || bytes[from + 2] !== 88 || bytes[from + 3] !== 49)
    throw new FrameError("not a frame of this version");
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const size = view.getUint32(from + 4, true);
  if (bytes.length - from < 8 + size) return null;
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(from + 8, from + 8 + size)));
  const Kind = kinds[head.dtype];
  if (!Kind) throw new FrameError(`numbers of type ${head.dtype}`);
  const count = head.shape.reduce((a, b) => a * b, 1), length = count * Kind.BYTES_PER_ELEMENT;
  const begin = from + 8 + size, end = begin + length + ((4 - (length % 4)) % 4);
  if (bytes.length < end) return null;
  return {head, values: new Kind(bytes.slice(begin, begin + length).buffer), end};
}

export function makeFrame(head, values) {
  let text = JSON.stringify(head);
  let encoded = new TextEncoder().encode(text);
  text += " ".repeat((4 - (encoded.length % 4)) % 4);
  encoded = new TextEncoder().encode(text);
  const padding = (4 - (values.byteLength % 4)) % 4;
  const bytes = new Uint8Array(8 + encoded.length + values.byteLength + padding);
  bytes.set([65, 69, 88, 49]);
  new DataView(bytes.buffer).setUint32(4, encoded.length, true);
  bytes.set(encoded, 8);
  bytes.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength), 8 + encoded.length);
  return bytes;
}

export function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

export function fromBase64(text) {
  const binary = atob(text), bytes = new Uint8Array(binary.length);
  for (let n = 0; n < binary.length; ++n) bytes[n] = binary.charCodeAt(n);
  return bytes;
}

// Frames of one map, joined as they come: planes of [rows, columns]; rows that are not there yet are NaN.
export class MapBuilder {
  add({head, values}) {
    const [planes, rows, columns] = head.shape, [first] = head.rows;
    const all = head.all_rows ?? rows;
    if (!this.map) {
      this.map = {queries: head.queries, keys: head.keys, rows: all, columns, done: 0, planes: {}, ms: 0,
                  kernel: head.kernel, exact: head.planes[0] === "weight",
                  rowStep: head.row_step ?? (head.queries[1] - head.queries[0]) / all};
      for (const name of head.planes) this.map.planes[name] = new Float32Array(all * columns).fill(NaN);
    }
    for (let plane = 0; plane < planes; ++plane)
      this.map.planes[head.planes[plane]].set(values.subarray(plane * rows * columns, (plane + 1) * rows * columns),
                                              first * columns);
    this.map.done += rows;
    this.map.ms = head.ms ?? this.map.ms;
    return this.map;
  }
}
