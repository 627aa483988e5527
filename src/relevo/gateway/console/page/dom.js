// Making and changing nodes. Texts are set as text only; a node is written to only where it changes, so that the focus,
// a selection and a screen reader's place stay where they are while values move.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** `attributes`: className, text, hidden, dataset entries as "data-x", listeners as functions under "on-click". */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "text") node.textContent = value;
    else if (key.startsWith("on-")) node.addEventListener(key.slice(3), value);
    else node.setAttribute(key === "className" ? "class" : key, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/** A length of a style, through the CSSOM: the policy forbids style attributes in markup. */
export function setVariable(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

/** Children of `parent`, one per item, made once per key and then updated, in the order of the items. */
export function sync(parent, items, keyOf, make, update) {
  const known = parent.relevoNodes ?? (parent.relevoNodes = new Map());
  const kept = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (kept.has(key)) continue;
    kept.add(key);
    let node = known.get(key);
    if (node === undefined) known.set(key, (node = make(item)));
    update(node, item);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  for (const [key, node] of known) {
    if (!kept.has(key)) {
      node.remove();
      known.delete(key);
    }
  }
}
