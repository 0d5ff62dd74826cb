// Small parts that several views show: names that link, marks, bars, times.

import { h } from './dom.js';
import { absolute, ago, bytes, clip, number, percent } from './format.js';
import { href } from './route.js';
import { holderName, now } from './state.js';
import { t, word } from './words.js';

/** A stranger's name or sentence, whose writing direction stays its own. */
export const foreign = (text, most = 200) =>
  h('bdi', { title: text.length > most && clip(text, 2000) }, clip(text, most));

export const nodeLink = (name, options) => h('a', { href: href('node', name, options) }, foreign(name));
export const podLink = (name) => h('a', { href: href('pod', name) }, foreign(name));

const KINDS = { gpu: 'GPU', nic: 'NIC', mig: 'MIG', fpga: 'FPGA', vf: 'VF', nvme: 'NVMe' };

/** "GPU 3". */
export function deviceName(device) {
  const kind = Object.hasOwn(KINDS, device.kind) ? KINDS[device.kind] : device.kind || t('device');
  return clip(`${kind} ${device.index ?? device.id}`, 60);
}

/** "gpu-17 GPU 3", which leads to the device on its node. */
export const deviceLink = (node, device) =>
  h('a', { href: href('node', node.name, { device: device.position }) },
    foreign(node.name), ' ', h('b', {}, deviceName(device)));

const healthWord = (health) => t(health === 'unhealthy' ? 'health_unhealthy' : health);

export const health = (device) => h(`span.health.${device.health}`, {}, healthWord(device.health));

/** A bar with its numbers, `part` from 0 to 1. */
export const bar = (part, text, mark = '') =>
  h('span.bar', {},
    h(`span.track${mark}`, {}, h('span.full', { style: { width: `${Math.min(100, 100 * part)}%` } })), text);

export function memoryBar(device) {
  if (device.memory === undefined) return '';
  if (device.memoryUsed === undefined) return bytes(device.memory);
  const text = t('ofTotal', { used: bytes(device.memoryUsed), all: bytes(device.memory) });
  return bar(device.memoryUsed / device.memory, text);
}

export const useBar = ({ utilization }) => (utilization === undefined ? '' : bar(utilization, percent(utilization)));

/** "10 GiB, 30 % of compute", or "whole device". */
export function shareText({ memory, compute }) {
  const parts = [memory === undefined ? '' : bytes(memory),
    compute === undefined ? '' : t('ofCompute', { part: percent(compute) })];
  return parts.filter(Boolean).join(', ') || t('whole');
}

/** Who has a part of a device, and how much. */
export const holderLine = (holder) => h('div.holder', { 'data-holder': clip(holderName(holder), 300) },
  h('span', {}, podLink(holderName(holder)), ' ', holderDetail(holder)), holderShare(holder));

/** The container and the claim of a holder. */
export const holderDetail = ({ pod, claim, container }) => h('span.dim', {}, foreign(container, 60),
  claim && [container ? ' · ' : '', `${t('claim')} `, pod ? foreign(claim, 80) : '']);

/** A holder's share and what is used of it. */
export function holderShare({ memory, compute, memoryUsed, isOverLimit }) {
  const used = memoryUsed === undefined ? '' : t('used', { n: bytes(memoryUsed) });
  return h('span.share', {}, shareText({ memory, compute }), ' ',
    used && (memory ? bar(memoryUsed / memory, used, isOverLimit ? '.over' : '') : h('span', {}, used)), ' ',
    isOverLimit && h('strong.over', {}, `▲ ${t('overLimit')}`));
}

/** A device in one line, for people who hear the page. */
export function sentence(node, device) {
  const holders = device.holders.map((it) => `${holderName(it)} ${shareText(it)}`).join(', ');
  return clip([
    node.name, deviceName(device), device.product, healthWord(device.health), device.reason,
    device.parts.length ? '' : holders || t('nobody'),
  ].filter(Boolean).join(', '), 600);
}

/** A moment as "5 min ago"; `main.js` keeps it right. */
export function time(text) {
  const ms = Date.parse(text);
  if (Number.isNaN(ms)) return foreign(text, 40);
  return h('time', { datetime: new Date(ms).toISOString(), title: absolute(ms) }, ago(ms, now()));
}

/** The part of a device that nobody has. */
export const idleText = ({ idle }) => t('idleOf', { n: percent(idle) });

export const enforcement = (device) => (device.enforcement ? word('enforce_', device.enforcement) : '');

export const sensors = ({ celsius, watts }) =>
  [celsius === undefined ? '' : `${number(celsius, 0)} °C`, watts === undefined ? '' : `${number(watts, 0)} W`]
    .filter(Boolean).join(' · ');

export const empty = (text, mark = '') => h(`p.empty${mark}`, {}, text);
