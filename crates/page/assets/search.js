// Search: filters nodes by their texts, and lists matching nodes, pods and devices below the input.

import { fill, h } from './dom.js';
import { clip } from './format.js';
import { deviceName, untrusted } from './parts.js';
import { href, option } from './route.js';
import { holderName, holdings, state } from './state.js';
import { t } from './words.js';

/** Maximum number of suggestions of each kind. */
const MAX_SUGGESTIONS = 6;
const texts = new WeakMap();

/** All searchable text of a node, cached when the node is drawn. */
export function wordsOf(node) {
  if (!texts.has(node)) {
    const words = node.devices.flatMap((it) => [it.id, it.product, it.kind, it.pci, it.reason, it.resource,
      ...it.holders.map((holder) => `${holderName(holder)} ${holder.claim}`)]);
    texts.set(node, [node.name, ...words].join('\n').toLowerCase());
  }
  return texts.get(node);
}

/** True if the text of the node contains every word of the query. */
export const matches = (node, query) =>
  !query || query.toLowerCase().split(/\s+/).every((word) => wordsOf(node).includes(word));

/** Suggestions for a query: [kind, name, address]. */
function findSuggestions(query) {
  const pattern = query.toLowerCase().trim();
  if (!pattern) return [];
  const matchesPattern = (name) => name.toLowerCase().includes(pattern);
  const pods = new Set([...holdings().keys(), ...state.pending.map(({ pod }) => pod)]);
  const suggestions = [];
  const collect = (names, toSuggestion) => {
    let count = 0;
    for (const name of names) {
      if (count === MAX_SUGGESTIONS) return;
      const entry = toSuggestion(name);
      if (entry && (count += 1)) suggestions.push(entry);
    }
  };
  collect(state.nodes.keys(), (name) => matchesPattern(name) && [t('node'), name, href('node', name)]);
  collect(pods, (name) => matchesPattern(name) && [t('pod'), name, href('pod', name)]);
  collect(state.nodes.values(), (node) => {
    const device = node.devices.find(({ id }) => matchesPattern(id));
    return device && [deviceName(device), `${clip(device.id, 60)} · ${clip(node.name, 60)}`,
      href('node', node.name, { device: device.position })];
  });
  return suggestions;
}

export function searchBox() {
  return h('div.search', { role: 'search' },
    h('input', {
      id: 'search', type: 'search', placeholder: t('search'), 'aria-label': t('search'), autocomplete: 'off',
      maxlength: 300, role: 'combobox', 'aria-controls': 'found', 'aria-expanded': 'false', spellcheck: 'false',
    }),
    h('kbd', { 'aria-hidden': 'true' }, '/'), h('ul', { id: 'found', role: 'listbox', hidden: true, 'data-own': true }));
}

/** Index of the selected suggestion; -1 for none. */
let selected = -1;

/** Shows suggestions for the text of the input, or hides the list. */
export function suggest(isOpen = true) {
  const [input, list] = [document.getElementById('search'), document.getElementById('found')];
  const suggestions = isOpen ? findSuggestions(input.value) : [];
  selected = suggestions.length ? Math.min(selected, suggestions.length - 1) : -1;
  fill(list, suggestions.map(([kind, name, address], index) => h('li', {
    role: 'option', id: `found-${index}`, 'aria-selected': String(index === selected),
  }, h('a', { href: address, tabindex: -1 }, h('span.dim', {}, kind), ' ', untrusted(name, 100)))));
  list.hidden = !suggestions.length;
  input.setAttribute('aria-expanded', String(suggestions.length > 0));
  input.setAttribute('aria-activedescendant', selected < 0 ? '' : `found-${selected}`);
}

/** Selects the next or the previous suggestion, or opens the selected one. */
export function navigate(key) {
  const links = document.querySelectorAll('#found a');
  if (key === 'Enter') {
    const link = links[Math.max(0, selected)];
    if (link) location.hash = link.getAttribute('href');
    selected = -1;
    suggest(false);
  } else if (links.length) {
    selected = (selected + (key === 'ArrowDown' ? 1 : links.length + (selected < 0 ? 0 : -1))) % links.length;
    suggest();
  }
}
