// History of events: faults, recoveries, placements and their ends.

import { h } from './dom.js';
import { day, number } from './format.js';
import { deviceLink, empty, nodeLink, podLink, time, untrusted } from './parts.js';
import { option, withOption } from './route.js';
import { state } from './state.js';
import { t, word } from './words.js';

const KINDS = ['fault', 'recovery', 'placed', 'ended', 'appeared', 'gone'];
const SIGNS = { fault: '✕', recovery: '✓', placed: '▸', ended: '▪', appeared: '+', gone: '−' };
const sign = (kind) => (Object.hasOwn(SIGNS, kind) ? SIGNS[kind] : '·');
const BUCKETS = 60;

export const isConcerned = (changes) => changes.history;

export function render() {
  const kind = option('kind');
  const counts = new Map(KINDS.map((name) => [name, 0]));
  for (const event of state.history) counts.set(event.kind, (counts.get(event.kind) ?? 0) + 1);
  const chip = (name, label, count) => h('a', {
    href: withOption('kind', name), 'data-replace': true, 'aria-current': kind === name && 'true',
  }, label, h('b', {}, number(count)));
  const selected = kind ? state.history.filter((event) => event.kind === kind) : state.history;
  return [
    h('h1', { 'data-key': 'heading' }, t('history')),
    h('div.toolbar', { 'data-key': 'kinds' }, h('div.segments', { role: 'group' },
      chip('', t('all'), state.history.length), [...counts].filter(([name, count]) => count || name === kind).slice(0, 12)
        .map(([name, count]) => chip(name, word('event_', name), count)))),
    selected.length > 1 && strip(selected),
    selected.length ? lines(selected) : empty(t('nothingHappened')),
  ].filter(Boolean);
}

/** Events as lines, newest first. */
export const lines = (events) => h('ol.events', { 'data-key': 'events' }, events.toReversed().map((event) =>
  h('li', { 'data-kind': event.kind.slice(0, 40), 'data-device': event.device.slice(0, 300) },
    h('span.when', {}, time(event.time)),
    h('span.kind', {}, h('i', { 'aria-hidden': 'true' }, sign(event.kind)), ' ', word('event_', event.kind)),
    h('span.where', {}, place(event), event.pod && [' ', podLink(event.pod)]),
    h('span.text', {}, untrusted(event.text, 600)))));

/** Node and device of an event. A device that the node no longer has is shown by its id. */
function place({ node, device }) {
  const currentDevice = state.nodes.get(node)?.devices.find(({ id }) => id && id === device);
  if (currentDevice) return deviceLink(state.nodes.get(node), currentDevice);
  return [node && nodeLink(node), device && h('span.id', {}, ' ', untrusted(device, 80))];
}

/** Chart of the number of events over time. Faults are at the bottom of each column. */
function strip(events) {
  const times = events.map((event) => [Date.parse(event.time), event.kind === 'fault'])
    .filter(([ms]) => !Number.isNaN(ms));
  if (times.length < 2) return '';
  const first = Math.min(...times.map(([ms]) => ms));
  const length = Math.max(1, Math.max(...times.map(([ms]) => ms)) - first);
  const columns = Array.from({ length: BUCKETS }, () => [0, 0]);
  const bucket = (ms) => Math.min(BUCKETS - 1, Math.floor(BUCKETS * (ms - first) / length));
  for (const [ms, isFault] of times) columns[bucket(ms)][isFault ? 0 : 1] += 1;
  const max = Math.max(...columns.map(([faults, others]) => faults + others));
  const height = (count) => (count ? Math.max(4, 56 * count / max) : 0);
  const column = (mark, index, base, count) =>
    count > 0 && h(`rect${mark}`, { x: index * 10 + 1, width: 8, y: 60 - base - height(count), height: height(count) });
  return h('figure.strip', { 'data-key': 'strip' },
    h('svg', { viewBox: `0 0 ${BUCKETS * 10} 60`, preserveAspectRatio: 'none', role: 'img', 'aria-label': t('eventsOverTime') },
      columns.map(([faults, others], index) =>
        [column('.fault', index, 0, faults), column('', index, height(faults), others)])),
    h('figcaption.dim', {}, h('span', {}, day(first)), h('span', {}, day(first + length))));
}
