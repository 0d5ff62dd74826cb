// Card with the details of the cell under the pointer or the focus.

import { fill, h } from './dom.js';
import { clip } from './format.js';
import {
  deviceName, enforcement, health, idleText, memoryBar, sensors, shareText, untrusted, useBar,
} from './parts.js';
import { holderName, state } from './state.js';
import { t } from './words.js';

const card = document.getElementById('card');
const MAX_HOLDERS = 8;
let shownCell;

/** Shows the card of a cell's device. Without a cell, hides the card. */
export function showCard(cell) {
  shownCell = cell;
  refreshCard();
}

export function refreshCard() {
  const node = shownCell?.isConnected && state.nodes.get(shownCell.closest('[data-node]')?.dataset.node);
  const device = node && node.devices[shownCell.closest('[data-at]').dataset.at];
  card.hidden = !device;
  if (!device) return;
  fill(card, lines(node, device));
  const [cellBox, cardBox] = [shownCell.getBoundingClientRect(), card.getBoundingClientRect()];
  const left = Math.min(cellBox.left, innerWidth - cardBox.width - 8);
  const isBelow = cellBox.bottom + cardBox.height + 16 < innerHeight;
  card.style.left = `${Math.max(8, left)}px`;
  card.style.top = `${isBelow ? cellBox.bottom + 8 : Math.max(8, cellBox.top - cardBox.height - 8)}px`;
}

function lines(node, device) {
  const row = (name, value) => value && h('div.pair', {}, h('span.dim', {}, name), value);
  const shares = (holders) => holders.slice(0, MAX_HOLDERS).map((holder) => h('div.pair', {},
    h('span', {}, untrusted(clip(holderName(holder), 60))),
    h(`span${holder.isOverLimit ? '.over' : '.dim'}`, {}, `${holder.isOverLimit ? '▲ ' : ''}${shareText(holder)}`)));
  const holders = [device, ...device.parts].flatMap((it) => it.holders);
  return [
    h('div.pair.title', {}, h('strong', {}, untrusted(node.name, 60), ` · ${deviceName(device)}`), health(device)),
    device.product && h('div.dim', {}, untrusted(device.product, 80)),
    device.reason && h('div.over', {}, untrusted(device.reason)),
    device.action && h('div', {}, '→ ', untrusted(device.action)),
    row(t('memory'), memoryBar(device)), row(t('use'), useBar(device)),
    row(t('sensors'), sensors(device)), row(t('enforcement'), enforcement(device)),
    holders.length ? h('div.who', {}, shares(holders),
      holders.length > MAX_HOLDERS && h('div.dim', {}, `+ ${holders.length - MAX_HOLDERS}`)) : '',
    device.idle > 0 && !device.parts.length && h('div.dim', {}, idleText(device)),
  ].filter(Boolean);
}
