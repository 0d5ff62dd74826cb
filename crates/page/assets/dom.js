// Creates elements, and updates a tree of elements in place. Data becomes text and attributes, never markup. Styles are
// set one by one, because the page's security policy forbids style attributes in markup.

const SVG = 'http://www.w3.org/2000/svg';
const SVG_NAMES = new Set(['svg', 'g', 'path', 'rect', 'line', 'circle', 'text', 'title']);

/** Creates an element: h('td.wide', { title, style: { width } }, 'text', element, [more]). */
export function h(name, attributes, ...children) {
  const [tag, ...classes] = name.split('.');
  const element = SVG_NAMES.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  if (classes.length) element.setAttribute('class', classes.join(' '));
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === 'style') Object.entries(value).forEach((entry) => element.style.setProperty(...entry));
    else element.setAttribute(key, value === true ? '' : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null && child !== false && child !== '') element.append(child);
  }
  return element;
}

/** Sets an attribute if its value differs. An equal value would still make the browser style all descendants. */
export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Changes `from` into `to` in place, so that focus, selection and scroll survive. Returns the resulting element. */
export function morph(from, to) {
  if (from.nodeName !== to.nodeName) {
    from.replaceWith(to);
    return to;
  }
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return from;
  }
  for (const { name, value } of to.attributes) {
    if (name !== 'style' && from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const name of from.getAttributeNames()) {
    if (name !== 'style' && !to.hasAttribute(name)) from.removeAttribute(name);
  }
  if (from.style.cssText !== to.style.cssText) from.style.cssText = to.style.cssText;
  if (!to.hasAttribute('data-own')) fill(from, to.childNodes);
  if (from.nodeName === 'SELECT' && from.value !== to.value) from.value = to.value;
  return from;
}

/** Replaces the children of `parent`. Reuses children with the same `data-key`, at any position. */
export function fill(parent, children) {
  const keyed = new Map();
  for (const child of parent.children) {
    if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
  }
  let next = parent.firstChild;
  for (const child of [...children]) {
    const key = child.dataset?.key;
    const existing = key === undefined ? next?.dataset?.key === undefined && next : keyed.get(key);
    keyed.delete(key);
    if (!existing) {
      parent.insertBefore(child, next);
      continue;
    }
    if (existing === next) next = next.nextSibling;
    else parent.insertBefore(existing, next);
    morph(existing, child);
  }
  while (next) {
    const following = next.nextSibling;
    next.remove();
    next = following;
  }
}
