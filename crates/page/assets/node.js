// One node: picture and table of its devices, their distances, and the node's events.

import { detailedNode } from './details.js';
import { h } from './dom.js';
import { bytes, clip, number } from './format.js';
import { lines } from './history.js';
import {
  deviceName, empty, enforcement, health, holderLine, idleText, memoryBar, sensors, untrusted, useBar,
} from './parts.js';
import { matrix, picture } from './picture.js';
import { route } from './route.js';
import { state } from './state.js';
import { width } from './width.js';
import { t } from './words.js';

const MAX_EVENTS = 20;
let focus;

/** Highlights the links of one device, or of all without a position. Returns true if that is a change. */
export function focusOn(position) {
  const isNew = focus !== position;
  focus = position;
  return isNew;
}

export const isConcerned = (changes, { name }) => changes.nodes.has(name) || changes.history;

export function render({ name }) {
  const node = detailedNode(name);
  if (!node) return [heading(name), empty(t('nodeUnknown'))];
  const events = state.history.filter((event) => event.node === name).slice(-MAX_EVENTS);
  const distances = matrix(node);
  return [
    heading(name, node), facts(node),
    node.devices.length > 0 && section('places',
      h('div.scroll', { 'data-node': name }, picture(node, width.ofMain - 34, focus))),
    section('devices', node.devices.length ? table(node) : empty(t('noDevices'))),
    distances && section('distances', h('p.dim', {}, t('distancesText')), distances),
    events.length > 0 && section('history', lines(events)),
  ].filter(Boolean);
}

const section = (name, ...children) =>
  h('section', { 'data-key': name, 'data-section': name }, h('h2', {}, t(name)), ...children);

const heading = (name, node) => h('h1', { 'data-key': 'heading' }, h('span.dim', {}, `${t('node')} `), untrusted(name),
  node && !node.hasAgent && h('span.tag', {}, t('noAgent')));

function facts(node) {
  const figures = [
    [node.free, t('freeGpus')], [node.idle, t('idleGpus')], [node.fragmented, t('fragmentedGpus')],
    [node.cpuFree, t('cpuFree')], [node.memoryFree === undefined ? undefined : bytes(node.memoryFree), t('memoryFree')],
  ];
  return h('div.facts', { 'data-key': 'facts' }, figures.filter(([value]) => value !== undefined)
    .map(([value, name]) => h('span', {}, h('b', {}, typeof value === 'number' ? number(value) : value), ` ${name}`)));
}

const COLUMNS = ['device', 'health', 'memory', 'use', 'holders', 'enforcement'];

function table(node) {
  const selected = Number(route().options.get('device') ?? NaN);
  const devices = node.devices.filter((device) => device.isWhole).flatMap((device) => [device, ...device.parts]);
  const column = (name, ...children) => h('td', { 'data-label': t(name) }, ...children);
  const row = (device) => h(`tr${device.isWhole ? '' : '.part'}`, {
    'data-key': device.position, 'data-id': clip(device.id, 300), 'data-health': device.health,
    id: `device-${device.position}`, 'aria-current': device.position === selected && 'true',
  },
  column('device', h('strong', {}, deviceName(device)), ' ', untrusted(device.product, 80),
    h('div.id', {}, untrusted(clip(device.id, 80))),
    h('div.id', {}, untrusted(deviceDetails(device), 120))),
  column('health', health(device), device.reason && h('div.over', {}, untrusted(device.reason)),
    device.action && h('div', {}, '→ ', untrusted(device.action))),
  column('memory', memoryBar(device)), column('use', useBar(device)),
  column('holders', device.holders.map(holderLine), device.parts.length ? '' : idlePart(device)),
  column('enforcement', enforcement(device)));
  return h('table.devices', {},
    h('thead', {}, h('tr', {}, COLUMNS.map((name) => h('th', { scope: 'col' }, t(name))))),
    h('tbody', {}, devices.map(row)));
}

const deviceDetails = (device) =>
  [device.pci.replace(/^0000:/, ''), sensors(device), device.resource || ((state.source === 'node' || device.isDetailed) && t('notOffered'))].filter(Boolean).join(' · ');

/** The part of a device without a holder. */
function idlePart(device) {
  if (!device.holders.length && device.idle === 1) return h('span.dim', {}, t('noHolder'));
  return device.idle > 0 && h('div.dim', {}, idleText(device));
}
