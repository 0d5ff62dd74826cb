// Starts the page: what comes from the server or from the person leads to one drawing of header and view.

import { refreshCard, showCard } from './card.js';
import * as cluster from './cluster.js';
import { assignHues } from './colours.js';
import { followDetails } from './details.js';
import { fill, setAttribute } from './dom.js';
import { ago } from './format.js';
import { later } from './frames.js';
import { header, submitToken } from './header.js';
import * as history from './history.js';
import { help, open, otherLanguage, pressed, theme } from './keys.js';
import * as node from './node.js';
import * as pending from './pending.js';
import * as pod from './pod.js';
import { askNow, follow } from './protocol.js';
import { choose, option, remember, route } from './route.js';
import { suggest } from './search.js';
import { apply, now, state, totals } from './state.js';
import { watchWidth } from './width.js';
import { speak, t } from './words.js';

const VIEWS = { cluster, table: cluster, node, pod, pending, history };
const main = document.getElementById('main');
const [clusterRoot, otherRoot] = main.children;
let connection = { kind: 'connecting' };
let shown = '';

/** The view of the address; an agent's page begins with its node. */
function current() {
  const here = route();
  const only = state.source === 'node' && here.view === 'cluster' && state.nodes.keys().next().value;
  const wanted = only ? { ...here, view: 'node', name: only } : here;
  return Object.hasOwn(VIEWS, wanted.view) ? wanted : { ...wanted, view: 'cluster' };
}

function drawHeader() {
  fill(document.getElementById('header'), header(connection));
  setAttribute(document.body, 'data-connection', connection.kind);
  const search = document.getElementById('search');
  if (search !== document.activeElement && search.value !== option('q')) search.value = option('q');
  const { unhealthy } = totals();
  document.title = `${unhealthy ? `(${unhealthy}) ` : ''}Windlass`;
  speakUp(unhealthy ? t('unhealthyDevices', { n: unhealthy }) : t('allWell'));
}

/** Tells people who hear the page when its answer changes. */
function speakUp(text) {
  const spoken = document.getElementById('spoken');
  const words = connection.kind === 'live' ? text : '';
  if (spoken.textContent !== words) spoken.textContent = words;
}

function drawView() {
  if (!state.hasCome) return;
  const here = current();
  const isCluster = VIEWS[here.view] === cluster;
  if (`${here.view} ${here.name}` !== shown) depths.set(shown, scrollY);
  if (option('colour') === 'holder') assignHues();
  // The cluster's many elements are kept while another view is on.
  const [root, other] = isCluster ? [clusterRoot, otherRoot] : [otherRoot, clusterRoot];
  root.hidden = false;
  other.hidden = true;
  fill(root, VIEWS[here.view].render(here));
  if (isCluster) cluster.arrange(root);
  arrive(here);
  refreshCard();
}

/** Where each view was left. */
const depths = new Map();
let marked;

/** Begins a view where it was left, or at the device that the address names. */
function arrive({ view, name, options }) {
  const key = `${view} ${name}`;
  if (key !== shown) {
    scrollTo(0, depths.get(key) ?? 0);
    showCard(undefined);
    marked = undefined;
  }
  shown = key;
  const device = options.get('device');
  if (device !== marked) document.getElementById(`device-${device}`)?.scrollIntoView({ block: 'nearest' });
  marked = device;
}

/** Draws all of it, when the address or the taste changed. */
function draw() {
  remember();
  const chosen = option('theme');
  if (chosen) setAttribute(document.documentElement, 'data-theme', chosen);
  const language = option('lang') || (/^zh/i.test(navigator.language) ? 'zh' : 'en');
  setAttribute(document.documentElement, 'lang', language === 'zh' ? 'zh-CN' : 'en');
  speak(language);
  document.querySelector('.skip').textContent = t('skip');
  later('header', drawHeader);
  later('view', drawView);
}

function take(document) {
  const changes = apply(document);
  cluster.note(changes.nodes);
  const here = current();
  const isOther = `${here.view} ${here.name}` !== shown;
  if (isOther || VIEWS[here.view].isConcerned(changes, here)) later('view', drawView);
  later('header', drawHeader);
}

function tell(news) {
  const isNew = ['kind', 'text', 'isRefused'].some((part) => news[part] !== connection[part]);
  connection = news;
  if (isNew) later('header', drawHeader);
}

// --- What people do ---

const DEEDS = {
  language: otherLanguage, theme, help, retry: askNow, skip: () => main.focus(),
};

addEventListener('hashchange', draw);
addEventListener('keydown', pressed);
addEventListener('submit', (event) => {
  event.preventDefault();
  submitToken();
});
addEventListener('change', ({ target }) => target.dataset.option && choose(target.dataset.option, target.value));
addEventListener('input', ({ target }) => {
  if (target.id !== 'search') return;
  suggest();
  if (['cluster', 'table'].includes(current().view)) choose('q', target.value);
});
addEventListener('click', (event) => {
  const { target } = event;
  const deed = target.closest('[data-do]')?.dataset.do;
  if (deed) return DEEDS[deed]();
  const link = target.closest('a[data-replace]');
  if (link && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    location.replace(link.getAttribute('href'));
  } else if (!target.closest('a') && target.closest('.tile')) {
    open(target);
  }
  if (!target.closest('.search')) suggest(false);
});

function pointAt({ target, type }) {
  const place = target.closest?.('.place');
  const cell = !place && target.closest?.('.cell');
  if (cell || type === 'pointerover') showCard(cell || undefined);
  if (current().view === 'node' && node.focusOn(place ? Number(place.dataset.at) : undefined)) later('view', drawView);
}
addEventListener('pointerover', pointAt);
addEventListener('focusin', pointAt);
addEventListener('scroll', () => showCard(undefined), { passive: true });

/** Keeps relative times right. */
setInterval(() => {
  for (const element of document.querySelectorAll('time')) {
    const text = ago(Date.parse(element.dateTime), now());
    if (element.textContent !== text) element.textContent = text;
  }
}, 5000);

watchWidth(drawView);
draw();
follow(take, tell);
followDetails(() => (current().view === 'node' ? current().name : undefined), () => {
  later('view', drawView);
  later('header', drawHeader);
});
