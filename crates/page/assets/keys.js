// Keyboard input, and the list of the keys.

import { moveByArrow, nextSize } from './cluster.js';
import { fill, h } from './dom.js';
import { clusterAddress } from './header.js';
import { choose, href, option, OPTIONS, route } from './route.js';
import { navigate, suggest } from './search.js';
import { nextUnhealthy } from './walk.js';
import { t } from './words.js';

const KEYS = [
  ['/', 'key_search'], ['1 2 3', 'key_views'], ['← ↑ ↓ →', 'key_arrows'], ['n', 'key_next'], ['c', 'key_colour'],
  ['t', 'key_table'], ['+ −', 'key_size'], ['d l', 'key_look'], ['Esc', 'key_escape'], ['?', 'key_help'],
];

const navigateTo = (address) => {
  location.hash = address;
};

const ACTIONS = {
  '/': () => document.getElementById('search').select(),
  '?': help,
  1: () => navigateTo(clusterAddress()), 2: () => navigateTo('#/pending'), 3: () => navigateTo('#/history'),
  n: nextUnhealthy,
  c: () => choose('colour', OPTIONS.colour[(OPTIONS.colour.indexOf(option('colour')) + 1) % OPTIONS.colour.length]),
  t: () => navigateTo(href(route().view === 'table' ? 'cluster' : 'table', '', route().options)),
  '+': () => choose('size', nextSize(1)), '=': () => choose('size', nextSize(1)),
  '-': () => choose('size', nextSize(-1)),
  d: theme, l: otherLanguage,
};

export function handleKey(event) {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (target.id === 'search') return handleSearchKey(event);
  if (target.matches('input, select, textarea')) return;
  if (key.startsWith('Arrow')) {
    if (moveByArrow(key)) event.preventDefault();
  } else if (key === 'Enter' && target.matches('.cell')) {
    open(target);
  } else if (key === 'Escape' && !document.querySelector('dialog[open]')) {
    if (!['cluster', 'table'].includes(route().view)) navigateTo(clusterAddress());
  } else if (Object.hasOwn(ACTIONS, key)) {
    event.preventDefault();
    ACTIONS[key]();
  }
}

function handleSearchKey(event) {
  if (event.key === 'Escape') {
    event.target.value = '';
    choose('q', '');
    suggest(false);
    event.target.blur();
  } else if (['ArrowDown', 'ArrowUp', 'Enter'].includes(event.key)) {
    event.preventDefault();
    navigate(event.key);
  }
}

/** Opens the view of a cell's node, at the cell's device. */
export function open(cell) {
  const { node } = cell.closest('[data-node]')?.dataset ?? {};
  if (node !== undefined) location.hash = href('node', node, { device: cell.closest('[data-at]')?.dataset.at ?? 0 });
}

export function help() {
  const dialog = document.getElementById('help');
  if (dialog.open) return dialog.close();
  fill(dialog, [h('h2', {}, t('help')), h('dl', {}, KEYS.map(([keys, name]) => h('div', {},
    h('dt', {}, keys.split(' ').map((key) => h('kbd', {}, key))), h('dd', {}, t(name))))),
  h('button', { 'data-do': 'help' }, t('close'))]);
  dialog.showModal();
}

export function theme() {
  const isDark = getComputedStyle(document.documentElement).colorScheme === 'dark'
    || (!option('theme') && matchMedia('(prefers-color-scheme: dark)').matches);
  choose('theme', isDark ? 'light' : 'dark');
}

export function otherLanguage() {
  choose('lang', document.documentElement.lang === 'en' ? 'zh' : 'en');
}
