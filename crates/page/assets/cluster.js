// All nodes, as tiles with a cell for each device, or as a table.
// Only the elements of changed nodes are rebuilt, those on the screen first.

import { palette } from './colours.js';
import { h, morph } from './dom.js';
import { schedule } from './frames.js';
import { empty } from './parts.js';
import { option, OPTIONS } from './route.js';
import { matches, wordsOf } from './search.js';
import { changed, state } from './state.js';
import { group, tile, titles } from './tiles.js';
import { legendLine, toolbar } from './toolbar.js';
import { moveFocus, resetFocus } from './walk.js';
import { width } from './width.js';
import { language, t } from './words.js';

/** Width and height of a tile in each size, as in the style sheet. */
const SIZES = { huge: [380, 138], large: [236, 86], medium: [132, 50], small: [84, 36], tiny: [42, 26] };
const GAP = 6;
/** Maximum number of tiles to insert in a frame. The browser needs most of the frame to style and paint them. */
const BATCH = 24;
const BATCH_MS = 4;
/** Maximum number of cells that flash at a time. */
const MAX_FLASHES = 40;

/** Element of each node in the list, names of nodes with a stale element, and elements near the screen. */
const elements = new Map();
const stale = new Set();
const near = new WeakSet();
let list;
/** Palette and language of the elements. */
let appearance;
/** The nodes to show, in order. */
let selected = [];

export const isConcerned = (changes) => changes.nodes.size > 0;

/** Marks the elements of these nodes as stale. */
export const markStale = (names) => names.forEach((name) => stale.add(name));

/** Toolbar, legend and an empty list, which `arrange` fills with the nodes. */
export function render({ view }) {
  const asTable = view === 'table';
  const { size, columns, rows } = shape();
  const body = asTable
    ? h('div.table', { 'data-key': 'table', role: 'table', 'aria-label': t('devices') },
      titles(), h('div', { 'data-own': true }))
    : h('div.grid', {
      'data-key': 'grid', 'data-own': true, 'data-size': size, role: 'list', 'aria-label': t('nodes'),
      style: { '--columns': columns, '--rows': rows },
    });
  selected = selectNodes();
  return [toolbar(asTable), legendLine(selected.length), body];
}

export function arrange(root) {
  const container = root.querySelector('[data-own]');
  if (container !== list) {
    list = container;
    elements.clear();
    list.addEventListener('contentvisibilityautostatechange', ({ target, skipped }) => {
      near[skipped ? 'delete' : 'add'](target);
    });
  }
  const newAppearance = [palette(option('colour')), language()].join();
  if (newAppearance !== appearance || !elements.size) markStale([...state.nodes.keys()]);
  appearance = newAppearance;
  for (const name of [...elements.keys(), ...stale].filter((it) => !state.nodes.has(it))) {
    elements.get(name)?.remove();
    elements.delete(name);
    stale.delete(name);
  }
  resetFocus((name) => elements.has(name), selected[0]);
  const nodes = selected;
  schedule('place', () => place(nodes, 0));
  for (const isNear of [true, false]) {
    for (const { name } of selected) {
      const element = stale.has(name) && elements.get(name);
      if (element && isOnScreen(element) === isNear) schedule(`node ${name}`, () => refresh(name));
    }
  }
}

/** True for an element near the screen. The browser reports it for bands of tiles, and for groups of table rows. */
const isOnScreen = (element) => near.has(element) || near.has(element.parentElement);

const isTable = () => list.matches('.table *');

const bandAt = (number) => list.children[number] ?? list.appendChild(h('div.band', { role: 'none' }));

/** Inserts the elements of these nodes into the list, in order: one batch now, the others in later frames. */
function place(nodes, start) {
  const end = performance.now() + BATCH_MS;
  let insertedCount = 0;
  const isBatchFull = () => insertedCount >= BATCH || performance.now() > end;
  const names = new Set(nodes.map(({ name }) => name));
  for (const [name, element] of elements) {
    if (names.has(name) || !element.isConnected) continue;
    if (performance.now() > end) return schedule('place', () => place(nodes, start));
    element.remove();
  }
  const { columns, rows } = shape();
  const bandSize = isTable() ? Infinity : columns * rows;
  for (let position = start; position < nodes.length; position += 1) {
    if (isBatchFull()) return schedule('place', () => place(nodes, position));
    const { name } = nodes[position];
    const band = isTable() ? list : bandAt(Math.floor(position / bandSize));
    const current = band.children[position % bandSize];
    if (!elements.has(name)) elements.set(name, h('div'));
    if (elements.get(name) === current) continue;
    if (stale.has(name) || !elements.get(name).dataset.key) refresh(name);
    band.insertBefore(elements.get(name), current ?? null);
    insertedCount += 1;
  }
  const bandCount = Math.ceil(nodes.length / bandSize);
  if (!isTable()) [...list.children].slice(bandCount).forEach((band) => band.remove());
  list.querySelector('.empty')?.remove();
  if (!nodes.length) list.append(empty(t(state.nodes.size ? 'noMatch' : 'noNodes')));
}

function refresh(name) {
  const node = state.nodes.get(name);
  const element = elements.get(name);
  if (!node || !element) return;
  stale.delete(name);
  wordsOf(node);
  morph(element, isTable() ? group(node) : tile(node));
  for (const device of node.devices.filter((it) => changed.has(it))) {
    changed.delete(device);
    if (isOnScreen(element)) flash(element.querySelector(`[data-at="${device.position}"]`));
  }
}

const reducedMotion = matchMedia('(prefers-reduced-motion: reduce)');
let flashes = 0;

function flash(element) {
  if (!element || reducedMotion.matches || flashes >= MAX_FLASHES) return;
  flashes += 1;
  // An outline causes no layout, and needs no layer as an opacity would. Steps limit the number of paints.
  const ring = ['var(--accent)', 'transparent'].map((colour) => ({ outline: `2px solid ${colour}` }));
  element.animate(ring, { duration: 1500, easing: 'steps(5)' }).onfinish = () => {
    flashes -= 1;
  };
}

// --- Selection and order of the nodes ---

const FILTERS = {
  all: () => true,
  unhealthy: (node) => node.unhealthy > 0,
  free: (node) => node.free > 0,
  shared: (node) => node.shared > 0,
};

const ORDERS = {
  problems: (node) => -node.unhealthy - node.overLimit,
  free: (node) => -node.idle,
  fragmented: (node) => -(node.fragmented ?? 0),
};

/** Rank of each name in natural order: gpu-9 before gpu-10. Cached, because the sort of many names exceeds a frame. */
let ranks = new Map();
const collator = new Intl.Collator('en', { numeric: true });

function selectNodes() {
  if (ranks.size !== state.nodes.size || [...state.nodes.keys()].some((name) => !ranks.has(name))) {
    ranks = new Map([...state.nodes.keys()].sort(collator.compare).map((name, rank) => [name, rank]));
  }
  const passesFilter = FILTERS[option('filter')];
  const query = option('q');
  const nodes = [...state.nodes.values()].filter((node) => passesFilter(node) && matches(node, query));
  const order = ORDERS[option('sort')] ?? (() => 0);
  return nodes.sort((one, other) => order(one) - order(other) || ranks.get(one.name) - ranks.get(other.name));
}

/** Tiles in a band: a group of rows that the browser lays out separately, and skips while it is off screen. */
const BAND = 64;

/** Size of the tiles (as chosen, or so that all fit on 1.5 screens), number of columns, and rows of a band. */
function shape() {
  const height = Math.max(300, innerHeight - 200);
  const columnsOf = (name) => Math.max(1, Math.floor((width.ofMain - 32 + GAP) / (SIZES[name][0] + GAP)));
  const fits = (name) => Math.ceil(state.nodes.size / columnsOf(name)) * (SIZES[name][1] + GAP) <= 1.5 * height;
  const size = option('size') === 'auto' ? Object.keys(SIZES).find(fits) ?? 'tiny' : option('size');
  const columns = columnsOf(size);
  return { size, columns, rows: Math.ceil(BAND / columns) };
}

/** Moves the focus by an arrow key. Returns false if no cell has the focus. */
export const moveByArrow = (key) => Boolean(list) && moveFocus(key, list, shape().columns);

/** The next larger (1) or smaller (-1) size of tiles. */
export function nextSize(step) {
  const sizes = OPTIONS.size.slice(1);
  return sizes[Math.min(sizes.length - 1, Math.max(0, sizes.indexOf(shape().size) + step))];
}
