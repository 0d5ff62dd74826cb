// Elements that several views share: links, marks, bars, times.

import { h } from './dom.js';
import { absolute, ago, bytes, clip, number, percent } from './format.js';
import { href } from './route.js';
import { holderName, now } from './state.js';
import { t, word } from './words.js';

/** Text of the cluster, such as a name, clipped and isolated from the writing direction of the page. */
export const untrusted = (text, max = 200) =>
  h('bdi', { title: text.length > max && clip(text, 2000) }, clip(text, max));

export const nodeLink = (name, options) => h('a', { href: href('node', name, options) }, untrusted(name));
export const podLink = (name) => h('a', { href: href('pod', name) }, untrusted(name));

const KINDS = { gpu: 'GPU', nic: 'NIC', mig: 'MIG', fpga: 'FPGA', vf: 'VF', nvme: 'NVMe' };

/** "GPU 3". */
export function deviceName(device) {
  const kind = Object.hasOwn(KINDS, device.kind) ? KINDS[device.kind] : device.kind || t('device');
  return clip(`${kind} ${device.index ?? device.id}`, 60);
}

/** Link "gpu-17 GPU 3" to the device in the view of its node. */
export const deviceLink = (node, device) =>
  h('a', { href: href('node', node.name, { device: device.position }) },
    untrusted(node.name), ' ', h('b', {}, deviceName(device)));

const healthWord = (health) => t(health === 'unhealthy' ? 'health_unhealthy' : health);

export const health = (device) => h(`span.health.${device.health}`, {}, healthWord(device.health));

/** A bar with a text. `part`, from 0 to 1, is the filled part. */
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

/** A holder of a device, with its share. */
export const holderLine = (holder) => h('div.holder', { 'data-holder': clip(holderName(holder), 300) },
  h('span', {}, podLink(holderName(holder)), ' ', holderDetail(holder)), holderShare(holder));

/** The container and the claim of a holder. */
export const holderDetail = ({ pod, claim, container }) => h('span.dim', {}, untrusted(container, 60),
  claim && [container ? ' · ' : '', `${t('claim')} `, pod ? untrusted(claim, 80) : '']);

/** The share of a holder, and its memory in use. */
export function holderShare({ memory, compute, memoryUsed, isOverLimit }) {
  const used = memoryUsed === undefined ? '' : t('used', { n: bytes(memoryUsed) });
  return h('span.share', {}, shareText({ memory, compute }), ' ',
    used && (memory ? bar(memoryUsed / memory, used, isOverLimit ? '.over' : '') : h('span', {}, used)), ' ',
    isOverLimit && h('strong.over', {}, `▲ ${t('overLimit')}`));
}

/** A device as one sentence, for screen readers. */
export function sentence(node, device) {
  const holders = device.holders.map((it) => `${holderName(it)} ${shareText(it)}`).join(', ');
  return clip([
    node.name, deviceName(device), device.product, healthWord(device.health), device.reason,
    device.parts.length ? '' : holders || t('noHolder'),
  ].filter(Boolean).join(', '), 600);
}

/** A time as "5 min ago", which `main.js` updates. */
export function time(text) {
  const ms = Date.parse(text);
  if (Number.isNaN(ms)) return untrusted(text, 40);
  return h('time', { datetime: new Date(ms).toISOString(), title: absolute(ms) }, ago(ms, now()));
}

/** The part of a device without a holder. */
export const idleText = ({ idle }) => t('idleOf', { n: percent(idle) });

export const enforcement = (device) => (device.enforcement ? word('enforce_', device.enforcement) : '');

export const sensors = ({ celsius, watts }) =>
  [celsius === undefined ? '' : `${number(celsius, 0)} °C`, watts === undefined ? '' : `${number(watts, 0)} W`]
    .filter(Boolean).join(' · ');

export const empty = (text, mark = '') => h(`p.empty${mark}`, {}, text);
