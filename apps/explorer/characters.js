// Characters whose bytes several tokens share: each of those tokens is shown as a part of the character, "漂²⁄₃".

const decoder = new TextDecoder("utf-8", {fatal: true, ignoreBOM: true});
const above = "⁰¹²³⁴⁵⁶⁷⁸⁹", below = "₀₁₂₃₄₅₆₇₈₉";

function fraction(part, of) {
  const written = (n, digits) => [...String(n)].map((digit) => digits[digit]).join("");
  return `${written(part, above)}⁄${written(of, below)}`;
}

function characterAt(bytes, at) {
  const lead = bytes[at], size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  try {
    return {text: decoder.decode(bytes.subarray(at, at + size)), size};
  } catch {
    return {text: `<0x${lead.toString(16).toUpperCase().padStart(2, "0")}>`, size: 1};  // begins no character that is here
  }
}

// Tokens that follow each other and come with their bytes: for each its units {text, part, of}; of > 1: `of` tokens share it.
function unitsOf(tokens) {
  const parts = tokens.map(({bytes}) => bytes.match(/../g).map((byte) => parseInt(byte, 16)));
  const bytes = Uint8Array.from(parts.flat()), owners = parts.flatMap((part, n) => part.map(() => n)), units = tokens.map(() => []);
  for (let at = 0; at < bytes.length;) {
    const {text, size} = characterAt(bytes, at), first = owners[at], of = owners[at + size - 1] - first + 1;
    for (let part = 1; part <= of; ++part) units[first + part - 1].push({text, part, of});
    at += size;
  }
  return units;
}

// Gives `units` to all tokens that come with their bytes.
export function joinCharacters(tokens) {
  for (let n = 0; n < tokens.length; ++n) {
    if (!tokens[n].bytes) continue;
    let end = n + 1;
    while (end < tokens.length && tokens[end].bytes) ++end;
    unitsOf(tokens.slice(n, end)).forEach((units, at) => (tokens[n + at].units = units));
    n = end;
  }
}

const most = 4;  // bytes of a character, so that it has no more tokens

// A token that may follow these, with its units.
export function following(tokens, token) {
  if (!token.bytes) return token;
  let first = tokens.length;
  while (first > 0 && tokens.length - first < most && tokens[first - 1].bytes) --first;
  return {...token, units: unitsOf([...tokens.slice(first), token]).at(-1)};
}

// A token's text by itself; in a line of tokens, where the first part has shown the character; for screen readers.
export function textOf(token) {
  return token.units?.map(({text, part, of}) => (of > 1 ? text + fraction(part, of) : text)).join("") ?? token.text;
}

export function textInLine(token) {
  return token.units?.map(({text, part, of}) => (part > 1 ? "" : text) + (of > 1 ? fraction(part, of) : "")).join("") ?? token.text;
}

export function textSaid(token) {
  return token.units?.map(({text, part, of}) => (of > 1 ? `${text} ${part}/${of}` : text)).join(" ") ?? token.text;
}

// Whether it goes on with a character that the token before began.
export function goesOn(token) {
  return token.units?.[0]?.part > 1;
}
