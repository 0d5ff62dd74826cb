// Pending pods, with each reason and its number of nodes.

import { h } from './dom.js';
import { number } from './format.js';
import { bar, empty, podLink, time, untrusted } from './parts.js';
import { state } from './state.js';
import { t } from './words.js';

export const isConcerned = (changes) => changes.pending;

export function render() {
  return [
    h('h1', { 'data-key': 'heading' }, t('pending'), ' ', h('span.dim', {}, number(state.pending.length))),
    state.pending.length ? h('ul.pending', { 'data-key': 'list' }, state.pending.map(pendingItem))
      : empty(t('nothingPending'), '.well'),
  ];
}

export function pendingItem({ pod, since, request, reasons, help, isExplained }) {
  const nodeCount = Math.max(1, reasons.reduce((sum, { nodes }) => sum + nodes, 0));
  return h('li', { 'data-pod': pod.slice(0, 300) },
    h('div.title', {}, h('strong', {}, podLink(pod)), since && h('span.dim', {}, ` ${t('since')} `, time(since))),
    request && h('div', {}, h('span.dim', {}, `${t('request')} `), untrusted(request)),
    h('ul.reasons', {}, reasons.map(({ reason, nodes }) => h('li', { 'data-nodes': nodes },
      bar(nodes / nodeCount, t('reasonNodes', { n: number(nodes) })), untrusted(reason, 400)))),
    !isExplained && h('div.dim', {}, t('notExplained')),
    help && h('div.helps', {}, h('b', {}, `${t('wouldHelp')}: `), untrusted(help, 600)));
}
