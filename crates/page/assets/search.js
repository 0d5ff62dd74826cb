// Search: nodes by anything that is on them, and a list of pods, nodes and devices under the box.

import { fill, h } from './dom.js';
import { clip } from './format.js';
import { deviceName, foreign } from './parts.js';
import { href, option } from './route.js';
import { holderName, holdings, state } from './state.js';
import { t } from './words.js';

const MOST = 6;
const haystacks = new WeakMap();

/** All words on a node. They are read once, when the node is drawn, so that a search need not read a thousand. */
export function wordsOf(node) {
  if (!haystacks.has(node)) {
    const words = node.devices.flatMap((it) => [it.id, it.product, it.kind, it.pci, it.reason, it.resource,
      ...it.holders.map((holder) => `${holderName(holder)} ${holder.claim}`)]);
    haystacks.set(node, [node.name, ...words].join('\n').toLowerCase());
  }
  return haystacks.get(node);
}

/** True if everything that is typed, word by word, is somewhere on the node. */
export const matches = (node, query) =>
  !query || query.toLowerCase().split(/\s+/).every((word) => wordsOf(node).includes(word));

/** What is found: [kind, name, address]. */
function find(query) {
  const wanted = query.toLowerCase().trim();
  if (!wanted) return [];
  const isHit = (name) => name.toLowerCase().includes(wanted);
  const pods = new Set([...holdings().keys(), ...state.pending.map(({ pod }) => pod)]);
  const found = [];
  const take = (names, make) => {
    let count = 0;
    for (const name of names) {
      if (count === MOST) return;
      const entry = make(name);
      if (entry && (count += 1)) found.push(entry);
    }
  };
  take(state.nodes.keys(), (name) => isHit(name) && [t('node'), name, href('node', name)]);
  take(pods, (name) => isHit(name) && [t('pod'), name, href('pod', name)]);
  take(state.nodes.values(), (node) => {
    const device = node.devices.find(({ id }) => isHit(id));
    return device && [deviceName(device), `${clip(device.id, 60)} · ${clip(node.name, 60)}`,
      href('node', node.name, { device: device.position })];
  });
  return found;
}

export function box() {
  return h('div.search', { role: 'search' },
    h('input', {
      id: 'search', type: 'search', placeholder: t('search'), 'aria-label': t('search'), autocomplete: 'off',
      maxlength: 300, role: 'combobox', 'aria-controls': 'found', 'aria-expanded': 'false', spellcheck: 'false',
    }),
    h('kbd', { 'aria-hidden': 'true' }, '/'), h('ul', { id: 'found', role: 'listbox', hidden: true, 'data-own': true }));
}

let marked = -1;

/** Shows what is found for the text in the box, or hides the list. */
export function suggest(isOpen = true) {
  const [input, list] = [document.getElementById('search'), document.getElementById('found')];
  const found = isOpen ? find(input.value) : [];
  marked = found.length ? Math.min(marked, found.length - 1) : -1;
  fill(list, found.map(([kind, name, to], at) => h('li', {
    role: 'option', id: `found-${at}`, 'aria-selected': String(at === marked),
  }, h('a', { href: to, tabindex: -1 }, h('span.dim', {}, kind), ' ', foreign(name, 100)))));
  list.hidden = !found.length;
  input.setAttribute('aria-expanded', String(found.length > 0));
  input.setAttribute('aria-activedescendant', marked < 0 ? '' : `found-${marked}`);
}

/** Moves the mark in the list, or follows it. */
export function steer(key) {
  const links = document.querySelectorAll('#found a');
  if (key === 'Enter') {
    const link = links[Math.max(0, marked)];
    if (link) location.hash = link.getAttribute('href');
    marked = -1;
    suggest(false);
  } else if (links.length) {
    marked = (marked + (key === 'ArrowDown' ? 1 : links.length + (marked < 0 ? 0 : -1))) % links.length;
    suggest();
  }
}
