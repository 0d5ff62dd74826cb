// One pod: its devices with links to their nodes, or the reasons why it is pending, and its events.

import { h } from './dom.js';
import { lines } from './history.js';
import { deviceLink, empty, health, holderDetail, holderShare, untrusted } from './parts.js';
import { pendingItem } from './pending.js';
import { holdings, state } from './state.js';
import { t } from './words.js';

export const isConcerned = () => true;

const holdingItem = ({ node, device, holder }) => h('li', {
  'data-node': node.name, 'data-at': device.position, 'data-id': device.id.slice(0, 300),
},
h('span', {}, deviceLink(node, device)), h('span', {}, untrusted(device.product, 80)),
h('span', {}, health(device), device.reason && h('div.over', {}, untrusted(device.reason))),
h('span', {}, holderDetail(holder)), h('span', {}, holderShare(holder)));

export function render({ name }) {
  const podHoldings = holdings().get(name) ?? [];
  const pendingEntries = state.pending.filter((pending) => pending.pod === name);
  const events = state.history.filter((event) => event.pod === name);
  return [
    h('h1', { 'data-key': 'heading' }, h('span.dim', {}, `${t('pod')} `), untrusted(name)),
    pendingEntries.length > 0 && h('ul.pending', { 'data-key': 'waits' }, pendingEntries.map(pendingItem)),
    podHoldings.length > 0 && h('ul.holdings', { 'data-key': 'held' }, podHoldings.map(holdingItem)),
    !podHoldings.length && !pendingEntries.length && empty(t('podUnknown')),
    events.length > 0 && h('section', { 'data-key': 'history' }, h('h2', {}, t('history')), lines(events)),
  ].filter(Boolean);
}
