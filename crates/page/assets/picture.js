// Picture of a node: a row of devices in PCI order, boxes for NUMA nodes, and the links between devices.
//
// The row runs in the direction `along` (u). In the direction `across` (v), NVLinks and xGMI links are on one side, and
// PCIe switches are brackets on the other side. Devices that are all linked in the same way (NVSwitch) share one line.
// On a narrow screen the row is vertical.

import { background, paint } from './colours.js';
import { h } from './dom.js';
import { deviceName, sentence } from './parts.js';
import { href, option } from './route.js';
import { t } from './words.js';

const GAP = 8;
const PAD = 12;
const LEVEL = 20;
const HORIZONTAL = { along: { gpu: 76, other: 48 }, depth: 58, head: 0, foot: 20 };
const VERTICAL = { along: { gpu: 34, other: 28 }, depth: 150, head: 20, foot: 0 };

const FAST = /^(NV\d*|XGMI)/;
const SWITCHES = ['PIX', 'PXB'];
/** The number of links in "NV18". */
const strength = (kind) => Number(kind.slice(2)) || 1;

/** Draws a node's devices within a width. With `focus`, the position of a device, the others show their link to it. */
export function picture(node, width, focus) {
  const horizontal = layout(node, HORIZONTAL);
  const isVertical = horizontal.length > width;
  const plan = isVertical ? layout(node, VERTICAL) : horizontal;
  const links = unique(node.links).filter(({ a, b }) => plan.spots.has(a) && plan.spots.has(b));
  const { buses, arcs } = bundle(links.filter(({ kind }) => FAST.test(kind)));
  const brackets = SWITCHES.flatMap((kind) =>
    groups(links.filter((it) => it.kind === kind)).map(({ members }) => ({ kind, members })));
  const levels = SWITCHES.filter((kind) => brackets.some((it) => it.kind === kind));
  const middle = (position) => plan.spots.get(position).middle;
  const arcHeight = ({ a, b }) => Math.min(120, 12 + Math.abs(middle(a) - middle(b)) / 5);
  const linkHeight = 18 + buses.length * LEVEL + Math.max(0, ...arcs.map(arcHeight));
  const rowHeight = plan.depth + 8 + LEVEL * levels.length + plan.foot;
  const totalHeight = linkHeight + rowHeight + 2 + (isVertical ? 60 : 0);
  // Converts (along, across) to coordinates on the screen.
  const point = (u, v) => (isVertical ? [rowHeight - v + 1, u] : [u, linkHeight + v]);
  const box = (u, v, length, depth) => {
    const [x, y] = point(u, v + (isVertical ? depth : 0));
    const [right, bottom] = point(u + length, v + (isVertical ? 0 : depth));
    return { left: `${x}px`, top: `${y}px`, width: `${right - x}px`, height: `${bottom - y}px` };
  };
  const line = (...points) => `M${points.map(([u, v]) => point(u, v).join(' ')).join('L')}`;
  const isHighlighted = (members) => focus === undefined || members.includes(focus);
  const label = (u, v, text, anchor = 'middle') => {
    const [x, y] = point(u, v);
    return h('text', { x, y: y + 4, 'text-anchor': anchor }, text);
  };
  // A label has more room beside a vertical line than on it.
  const labelAnchor = isVertical ? 'start' : 'middle';

  const drawBus = ({ kind, members }, index) => {
    const v = -14 - LEVEL * index - LEVEL / 2;
    const ends = members.map(middle);
    const [from, to] = [Math.min(...ends), Math.max(...ends)];
    return h(`g.fast${isHighlighted(members) ? '' : '.faint'}`, { 'data-bus': kind },
      h('path', { d: ends.map((u) => line([u, 0], [u, v])).join('') + line([from, v], [to, v]), 'stroke-width': 2.5 }),
      label((from + to) / 2, v - 9, `${kind} × ${members.length}`, labelAnchor));
  };
  const drawArc = ({ a, b, kind }) => {
    const [u, w] = [middle(a), middle(b)];
    const v = -arcHeight({ a, b }) * 1.33;
    const curve = `M${point(u, 0).join(' ')}C${[point(u, v), point(w, v), point(w, 0)].flat().join(' ')}`;
    return h(`g.fast${isHighlighted([a, b]) ? '' : '.faint'}`, { 'data-arc': `${a}-${b}` },
      h('path', { d: curve, 'stroke-width': 1 + Math.min(4, strength(kind) / 2) }, h('title', {}, kind)),
      (arcs.length <= 8 || focus !== undefined) && isHighlighted([a, b])
        && label((u + w) / 2, v * 0.75, kind, labelAnchor));
  };
  const drawBracket = ({ kind, members }) => {
    const v = plan.depth + 8 + LEVEL * levels.indexOf(kind);
    const edges = members.map((position) => plan.spots.get(position));
    const [from, to] = [Math.min(...edges.map((it) => it.from)), Math.max(...edges.map((it) => it.to))];
    return h(`g.switch${isHighlighted(members) ? '' : '.faint'}`, { 'data-switch': kind },
      h('path', { d: line([from, v - 4], [from, v], [to, v], [to, v - 4]) }), label((from + to) / 2, v + 7, kind));
  };
  const distance = (position) =>
    links.find(({ a, b }) => (a === focus && b === position) || (b === focus && a === position))?.kind;
  const caption = ({ position, pci }) => (focus === undefined || focus === position
    ? pci.replace(/^0000:/, '').slice(0, 10) : distance(position) ?? '–');
  const drawDevice = (device) => {
    const { from, to } = plan.spots.get(device.position);
    return h('a.place', {
      href: href('node', node.name, { device: device.position }), 'data-replace': true, 'data-at': device.position,
      'data-health': device.health, 'aria-label': sentence(node, device), style: box(from, 0, to - from, plan.depth),
    }, h('b', {}, deviceName(device)),
    h('span.cell', {
      'data-health': device.health, style: { background: background(paint(option('colour'), node, device)) },
    }),
    h('small', {}, caption(device)));
  };
  const [across, along] = [totalHeight, plan.length];
  const [pictureWidth, pictureHeight] = isVertical ? [across, along] : [along, across];
  const pictureStyle = { width: `${pictureWidth}px`, height: `${pictureHeight}px` };
  const viewBox = `0 0 ${pictureWidth} ${pictureHeight}`;
  return h(`div.picture${isVertical ? '.upright' : ''}`, { style: pictureStyle },
    plan.boxes.map(({ numa, from, to }) => h('div.numa', { style: box(from, -8, to - from, rowHeight + 8) },
      numa === undefined ? '' : h('span', {}, t('numa', { n: numa })))),
    h('svg', { viewBox, width: pictureWidth, height: pictureHeight, 'aria-hidden': 'true' },
      buses.map(drawBus), arcs.map(drawArc), brackets.map(drawBracket)),
    plan.order.map(drawDevice));
}

/** Positions of the whole devices along the row, by NUMA node, then by PCI address. */
function layout(node, { along, depth, head, foot }) {
  const padded = (value) => String(value).padStart(6);
  const key = ({ numa, pci, position }) => [padded(numa ?? 9999), pci || '~', padded(position)].join(' ');
  const order = node.devices.filter((it) => it.isWhole).sort((one, other) => (key(one) < key(other) ? -1 : 1));
  const spots = new Map();
  const boxes = [];
  let offset = 0;
  for (const device of order) {
    const last = boxes.at(-1);
    if (last && last.numa === device.numa) offset = last.to - PAD + GAP;
    else boxes.push({ numa: device.numa, from: offset, to: 0 }), offset += PAD + head;
    const length = device.kind === 'gpu' ? along.gpu : along.other;
    spots.set(device.position, { from: offset, middle: offset + length / 2, to: offset + length });
    boxes.at(-1).to = offset + length + PAD;
    offset = boxes.at(-1).to + PAD;
  }
  return { order, spots, boxes, length: boxes.at(-1)?.to ?? 0, depth, foot };
}

/** Removes duplicates, so that each pair of devices has one link. */
function unique(links) {
  const pairs = new Map(links.map(({ a, b, kind }) => [[a, b].sort((one, other) => one - other).join(), kind]));
  return [...pairs].map(([pair, kind]) => ({ a: Number(pair.split(',')[0]), b: Number(pair.split(',')[1]), kind }));
}

/** Groups of devices that these links connect. */
function groups(links) {
  const groupOf = new Map();
  for (const { a, b } of links) {
    const merged = new Set([...groupOf.get(a) ?? [a], ...groupOf.get(b) ?? [b]]);
    merged.forEach((member) => groupOf.set(member, merged));
  }
  return [...new Set(groupOf.values())].map((members) => ({ members: [...members] }));
}

/** Groups of at least three devices that are all linked in the same way (`buses`), and the other links (`arcs`). */
function bundle(links) {
  const buses = [];
  for (const kind of new Set(links.map((it) => it.kind))) {
    const sameKind = links.filter((it) => it.kind === kind);
    for (const { members } of groups(sameKind)) {
      const count = sameKind.filter(({ a, b }) => members.includes(a) && members.includes(b)).length;
      if (members.length > 2 && count === members.length * (members.length - 1) / 2) buses.push({ kind, members });
    }
  }
  const isInBus = ({ a, b, kind }) =>
    buses.some((bus) => bus.kind === kind && bus.members.includes(a) && bus.members.includes(b));
  return { buses, arcs: links.filter((link) => !isInBus(link)) };
}

/** Table with the distance of each pair of devices. */
export function matrix(node) {
  const links = unique(node.links);
  if (!links.length) return '';
  const kinds = new Map(links.flatMap(({ a, b, kind }) => [[`${a} ${b}`, kind], [`${b} ${a}`, kind]]));
  const linkedDevices = node.devices.filter((it) => links.some(({ a, b }) => a === it.position || b === it.position));
  const rank = (kind) => (FAST.test(kind) ? 'fast' : SWITCHES.includes(kind) ? 'near' : 'far');
  const cell = (one, other) => {
    const kind = kinds.get(`${one.position} ${other.position}`) ?? (one === other ? '' : '–');
    return h(`td.${rank(kind)}`, { 'data-pair': `${one.position}-${other.position}` }, kind.slice(0, 8));
  };
  return h('div.scroll', {}, h('table.matrix', {},
    h('thead', {}, h('tr', {}, h('td'), linkedDevices.map((it) => h('th', { scope: 'col' }, deviceName(it))))),
    h('tbody', {}, linkedDevices.map((one) => h('tr', {},
      h('th', { scope: 'row' }, deviceName(one)), linkedDevices.map((it) => cell(one, it)))))));
}
