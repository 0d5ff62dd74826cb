// Header of the page: verdict, navigation, and the state of the connection.

import { h } from './dom.js';
import { clock, number } from './format.js';
import { useToken } from './protocol.js';
import { href, route } from './route.js';
import { searchBox } from './search.js';
import { state, totals } from './state.js';
import { language, t } from './words.js';

/** Last address of the cluster view. */
let cluster = '#/';
export const clusterAddress = () => cluster;

export function header(connection) {
  const { view } = route();
  if (view === 'cluster' || view === 'table') cluster = location.hash || '#/';
  const parts = [bar(view), state.isSimulated && simulated(), problem(connection), state.isLoaded && verdict()];
  return parts.filter(Boolean);
}

const simulated = () =>
  h('div.simulated', { 'data-key': 'simulated' }, h('strong', {}, t('simulated')), ` ${t('simulatedText')}`);

function bar(view) {
  const tab = (name, address, count, views = [name]) =>
    h('a', { href: address, 'aria-current': views.includes(view) && 'page' },
      t(name), count > 0 && h('b', {}, number(count)));
  const nodeName = state.source === 'node' && state.nodes.keys().next().value;
  return h('div.bar', { 'data-key': 'bar' },
    h('a.brand', { href: '#/', title: `Windlass ${state.version.slice(0, 40)}` },
      h('img', { src: 'icon.svg', alt: '', width: 22, height: 22 }), 'Windlass'),
    h('nav', {}, nodeName ? tab('node', href('node', nodeName)) : tab('cluster', cluster, 0, ['cluster', 'table']),
      tab('pending', href('pending'), state.pending.length), tab('history', href('history'))),
    searchBox(),
    h('div.tools', {},
      h('button', { 'data-do': 'language', lang: language() === 'en' ? 'zh-CN' : 'en' }, t('otherLanguage')),
      h('button', { 'data-do': 'theme', title: t('theme'), 'aria-label': t('theme') }, '◐'),
      h('button', { 'data-do': 'help', title: t('help'), 'aria-label': t('help') }, '?')));
}

/** The problems, or a text that there are none; then the figures. */
function verdict() {
  const sums = totals();
  const count = (key, n) => t(key, { n: number(n) });
  const unhealthy = {
    devices: count('unhealthyDevices', sums.unhealthy),
    nodes: count('reasonNodes', sums.unhealthyNodes),
  };
  const troubles = [
    sums.unhealthy > 0 && ['bad', href('cluster', '', { filter: 'unhealthy' }), t('troubleOn', unhealthy)],
    sums.overLimit > 0 && ['bad', href('cluster', '', { sort: 'problems' }), count('overLimits', sums.overLimit)],
    sums.unknown > 0 && ['warn', href('cluster', '', { sort: 'problems' }), count('unknownDevices', sums.unknown)],
    state.pending.length > 0 && ['warn', href('pending'), count('podsPending', state.pending.length)],
  ].filter(Boolean);
  const noProblem = () => (state.nodes.size ? h('strong.well', {}, t('allWell')) : h('span.dim', {}, t('noNodes')));
  const { gpus, freeGpus, idleGpus, fragmentedGpus } = state.summary;
  const figures = [['gpus', gpus], ['freeGpus', freeGpus], ['idleGpus', idleGpus], ['fragmentedGpus', fragmentedGpus]];
  const troubleLink = ([mark, address, text]) => h(`a.${mark}`, { href: address }, text);
  return h('div.verdict', { 'data-key': 'verdict' },
    h('p', {}, troubles.length ? troubles.map(troubleLink) : noProblem()),
    h('dl', {}, state.source === 'cluster' && figure('nodes', sums.nodes, ''),
      figures.filter(([, value]) => value !== undefined)
        .map(([name, value]) => figure(name, value, t(`${name.replace('Gpus', '')}Text`)))));
}

const figure = (name, value, title) =>
  h('div', { title: title || undefined, 'data-figure': name }, h('dd', {}, number(value)), h('dt', {}, t(name)));

/** A notice if the page does not have the newest state. */
function problem({ kind, text, since, isRefused }) {
  const retryButton = h('button', { 'data-do': 'retry' }, t('retry'));
  const notice = (...children) => h('div.notice', { 'data-key': 'notice', role: 'status' }, ...children);
  const serverText = text && h('span.dim', {}, ` ${text}`);
  switch (kind) {
    case 'connecting': return notice(t('loading'));
    case 'lost': return notice(h('strong', {}, t('lost', { time: clock(since) })), serverText, ' ', retryButton);
    case 'busy': return notice(t('busy'), serverText, ' ', retryButton);
    case 'forbidden': return h('div', { 'data-key': 'notice' },
      notice(h('strong', {}, t('forbidden')), serverText, ' ', retryButton), tokenForm('otherToken'));
    case 'token': return tokenForm('tokenNeeded', isRefused);
    default: return '';
  }
}

const tokenForm = (title, isRefused) => h('form.token', { 'data-key': 'token', id: 'token-form' },
  h('h1', {}, t(title)), h('p', {}, t('tokenText')),
  h('pre', {}, 'kubectl create token NAME -n NAMESPACE'),
  isRefused && h('p.over', {}, t('tokenRefused')),
  h('p.over', { id: 'token-invalid', hidden: true }, t('tokenInvalid')),
  h('label', {}, t('token'), h('input', { type: 'password', id: 'token', autocomplete: 'off', spellcheck: 'false' })),
  h('button', { type: 'submit' }, t('open')));

export function submitToken() {
  const input = document.getElementById('token');
  const isToken = useToken(input.value);
  document.getElementById('token-invalid').hidden = isToken;
  if (isToken) input.value = '';
}
