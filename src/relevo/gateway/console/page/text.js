// Names and texts of clients and operators, made safe to look at. They may be any text: markup stays text because the
// page only ever sets textContent; this shows what would otherwise hide or reorder what stands beside it.

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const MAX_SHOWN = 120;  // arbitrary

/** Control, zero-width and direction marks by their code points, so that they are seen and do nothing. */
export function visible(text) {
  return String(text).replace(HIDDEN, (mark) => `\u27e8${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
}

/** The same, not longer than `most` characters: its beginning and its end. */
export function shortened(text, most = MAX_SHOWN) {
  const shown = [...visible(text)];
  if (shown.length <= most) return shown.join("");
  const half = Math.floor((most - 1) / 2);
  return `${shown.slice(0, half).join("")}\u2026${shown.slice(-half).join("")}`;
}

/** What a model says: its line breaks and tabs are its own, marks that reorder text are shown. */
export function spoken(text) {
  return text.split(/([\n\t])/).map((part) => (part === "\n" || part === "\t" ? part : visible(part))).join("");
}
