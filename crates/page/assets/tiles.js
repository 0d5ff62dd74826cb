// Elements of a node in the cluster's view: a tile with a cell for each device, or rows of the table.

import { background, paint } from './colours.js';
import { h } from './dom.js';
import { clip, number } from './format.js';
import { deviceName, health, holderLine, memoryBar, nodeLink, sentence, untrusted, useBar } from './parts.js';
import { href, option } from './route.js';
import { holderName } from './state.js';
import { isRoving } from './walk.js';
import { t } from './words.js';

export function tile(node) {
  const wholes = node.devices.filter((device) => device.isWhole);
  const hasGpus = wholes.some(({ kind }) => kind === 'gpu');
  const major = wholes.filter(({ kind }) => !hasGpus || kind === 'gpu');
  const minor = wholes.filter((device) => !major.includes(device));
  const marks = [node.unhealthy && 'faulty', !node.hasAgent && 'no-agent'].filter(Boolean);
  return h(['div.tile', ...marks].join('.'), { 'data-key': node.name, 'data-node': node.name, role: 'listitem' },
    h('div.head', {},
      h('a.name', { href: href('node', node.name), tabindex: -1 }, untrusted(node.name, 120)),
      h('span.note', {}, !node.hasAgent ? h('span.tag', {}, t('noAgent')) : node.idle > 0 && t('idleOf', { n: number(node.idle) }))),
    h('div.cells', {}, major.map((device) => cell(node, device))),
    minor.length > 0 && h('div.cells.minor', {}, minor.map((device) => cell(node, device))),
    h('div.foot', {}, wholes.length ? products(major) : t('noDevices')),
    h('div.pods', {}, pods(node).join(', ')));
}

/** "8 × NVIDIA H100 80GB HBM3", the most common first. */
function products(devices) {
  const counts = new Map();
  for (const { product } of devices) counts.set(product, (counts.get(product) ?? 0) + 1);
  const commonest = [...counts].sort((one, other) => other[1] - one[1]).slice(0, 3);
  return untrusted(commonest.map(([product, count]) => `${count} × ${clip(product || '?', 60)}`).join(', '));
}

const pods = ({ devices }) =>
  [...new Set(devices.flatMap((it) => it.holders.map((holder) => clip(holderName(holder), 60))))].slice(0, 12);

function cell(node, device) {
  return h('span.cell', {
    role: 'img', tabindex: isRoving(node, device) ? 0 : -1, 'data-at': device.position,
    'data-health': device.health, 'aria-label': sentence(node, device),
    style: { background: background(paint(option('colour'), node, device)) },
  });
}

const COLUMNS = ['node', 'device', 'product', 'health', 'memory', 'use', 'idle', 'holders'];

/** Columns that show their name on a narrow screen, which has no titles. */
const BARS = ['memory', 'use'];

export const titles = () =>
  h('div.row.titles', { role: 'row' }, COLUMNS.map((name) => h('span', { role: 'columnheader' }, t(name))));

export function group(node) {
  const row = (attributes, ...cells) => h('div.row', { role: 'row', ...attributes },
    cells.map((content, index) => h('span', {
      role: 'cell', 'data-label': BARS.includes(COLUMNS[index]) && t(COLUMNS[index]),
    }, content)));
  const noHolder = (device) => h('span.dim', {}, device.parts.length ? '' : t('noHolder'));
  const rows = node.devices.map((device) => row(
    { 'data-at': device.position, 'data-id': clip(device.id, 300), 'data-health': device.health },
    nodeLink(node.name, { device: device.position }),
    [cell(node, device), deviceName(device)], untrusted(device.product, 60),
    [health(device), device.reason && h('span.dim', {}, ' ', untrusted(device.reason))],
    memoryBar(device), useBar(device), number(device.idle, 2),
    device.holders.length ? device.holders.map(holderLine) : noHolder(device)));
  const emptyRow = () => row({}, nodeLink(node.name), '–', t('noDevices'));
  return h('div.group', { role: 'rowgroup', 'data-key': node.name, 'data-node': node.name },
    rows.length ? rows : emptyRow());
}
