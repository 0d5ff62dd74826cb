// Colours of the parts of a device, by the selected mode, and the numbers of the legend.
// A part is { size, key }. The sizes of a device's parts add up to 1. The key names a colour and a legend entry.

import { holderName, state } from './state.js';

/** Lower bounds of the classes of a scale, in percent. The first and the last are narrow, to show empty and full. */
export const CLASSES = [0, 5, 25, 50, 75, 95];

/** Hues for namespaces, far from the red of unhealthy devices. */
const HUES = [255, 150, 65, 315, 200, 105, 285, 350];
/** Index into HUES by namespace. */
const hues = new Map();

const COLOURS = {
  held: 'var(--held)', idle: 'var(--idle)', unhealthy: 'var(--unhealthy)', unknown: 'var(--unknown)',
  none: 'var(--unknown)', others: 'var(--others)',
};

export function colour(key) {
  if (Object.hasOwn(COLOURS, key)) return COLOURS[key];
  const [kind, name] = [key.slice(0, 1), key.slice(1)];
  const hue = HUES[hues.get(name)];
  if (kind === '@') return `light-dark(oklch(0.63 0.13 ${hue}), oklch(0.7 0.12 ${hue}))`;
  return `var(--${kind === 'f' ? 'loss' : 'scale'}-${name})`;
}

const scale = (prefix, value) => `${prefix}${CLASSES.findLastIndex((bound) => 100 * value >= bound)}`;

const PAINTERS = {
  health: (device) => (device.health === 'healthy' ? split(device, () => 'held') : [{ size: 1, key: device.health }]),
  holder: (device) => split(device, (holder) => namespaceKey(holderName(holder))),
  memory: (device) => measure(device.memory && device.memoryUsed !== undefined
    ? device.memoryUsed / device.memory : undefined),
  utilization: (device) => measure(device.utilization),
  fragmentation: (device, node) => (device.health === 'healthy'
    ? split(device, () => 'held', node.fragmented === undefined ? 'none' : scale('f', node.fragmented / node.idle || 0))
    : [{ size: 1, key: device.health }]),
};

const measure = (value) => [{ size: 1, key: value === undefined ? 'none' : scale('s', value) }];

/** Splits a device into a part for each holder, by its share, and a part without a holder. */
function split(device, keyOf, idleKey = 'idle') {
  const held = 1 - device.idle;
  const shares = device.holders.map((holder) => share(device, holder));
  const sum = shares.reduce((total, it) => total + it, 0);
  const fit = sum > held ? held / sum : 1;
  const parts = device.holders.map((holder, at) => ({ size: shares[at] * fit, key: keyOf(holder) }));
  const unattributed = held - sum * fit;
  if (unattributed > 0.001) parts.push({ size: unattributed, key: 'held' });
  if (device.idle > 0) parts.push({ size: device.idle, key: idleKey });
  return parts;
}

/** The part of a device that a holder has, from 0 to 1. */
export function share(device, holder) {
  if (holder.memory !== undefined && device.memory) return Math.min(1, holder.memory / device.memory);
  return Math.min(1, holder.compute ?? 1);
}

/** The parts of a device. For a partitioned device, the parts of its partitions. */
export function paint(mode, node, device) {
  const partitions = device.health === 'unhealthy' ? [] : device.parts;
  if (!partitions.length) return PAINTERS[mode](device, node);
  const sizes = partitions.map((it) =>
    (it.memory && device.memory ? it.memory / device.memory : 1 / partitions.length));
  const sum = Math.max(1, sizes.reduce((total, it) => total + it, 0));
  const parts = partitions.flatMap((it, at) =>
    PAINTERS[mode](it, node).map(({ size, key }) => ({ size: size * sizes[at] / sum, key })));
  const unpartitioned = 1 - parts.reduce((total, it) => total + it.size, 0);
  return unpartitioned > 0.001 ? [...parts, { size: unpartitioned, key: 'idle' }] : parts;
}

/** A CSS background of these parts, with gaps between them. */
export function background(parts) {
  if (parts.length === 1) return colour(parts[0].key);
  let percentage = 0;
  const stops = parts.map(({ size, key }, number) => {
    const start = percentage;
    percentage += 100 * size;
    const end = percentage.toFixed(1);
    const gap = number < parts.length - 1 ? `, var(--card) calc(${end}% - 1px) ${end}%` : '';
    return `${colour(key)} ${start.toFixed(1)}% ${gap ? `calc(${end}% - 1px)` : '100%'}${gap}`;
  });
  return `linear-gradient(90deg, ${stops.join(', ')})`;
}

/** Sums of the parts of a node's whole devices by key, which are the numbers of the legend. Cached by node. */
const cache = new WeakMap();
function sums(mode, node) {
  const cached = cache.get(node);
  if (cached?.mode === palette(mode)) return cached.sums;
  const sums = new Map();
  for (const device of node.devices.filter((it) => it.isWhole)) {
    for (const { size, key } of paint(mode, node, device)) sums.set(key, (sums.get(key) ?? 0) + size);
  }
  cache.set(node, { mode: palette(mode), sums });
  return sums;
}

/** Identifies the colours in use. Elements that were painted with another palette are stale. */
export function palette(mode) {
  return mode === 'holder' ? `${mode} of ${hues.size}` : mode;
}

/** Number of devices by key over all nodes, in which a part counts as a fraction. */
export function legend(mode) {
  const total = new Map();
  for (const node of state.nodes.values()) {
    for (const [key, size] of sums(mode, node)) total.set(key, (total.get(key) ?? 0) + size);
  }
  return total;
}

const namespaceOf = (name) => name.slice(0, name.indexOf('/') < 0 ? undefined : name.indexOf('/'));
const namespaceKey = (name) => (hues.has(namespaceOf(name)) ? `@${namespaceOf(name)}` : 'others');

/** Assigns hues to the largest namespaces. A namespace keeps its hue, so that no colour changes its meaning. */
export function assignHues() {
  if (hues.size === HUES.length) return;
  const counts = new Map();
  for (const node of state.nodes.values()) {
    for (const { holders } of node.devices) {
      for (const holder of holders) {
        const name = namespaceOf(holderName(holder));
        counts.set(name, (counts.get(name) ?? 0) + 1);
      }
    }
  }
  const largest = [...counts].sort((one, other) => other[1] - one[1] || (one[0] < other[0] ? -1 : 1));
  for (const [name] of largest) {
    if (hues.size < HUES.length && !hues.has(name)) hues.set(name, hues.size);
  }
}
