// Entry point. Each document of the server and each input of the user redraws the header and the view.

import { refreshCard, showCard } from './card.js';
import * as cluster from './cluster.js';
import { assignHues } from './colours.js';
import { followDetails } from './details.js';
import { fill, setAttribute } from './dom.js';
import { ago } from './format.js';
import { schedule } from './frames.js';
import { header, submitToken } from './header.js';
import * as history from './history.js';
import { handleKey, help, open, otherLanguage, theme } from './keys.js';
import * as node from './node.js';
import * as pending from './pending.js';
import * as pod from './pod.js';
import { follow, requestNow } from './protocol.js';
import { choose, option, route, storeOptions } from './route.js';
import { suggest } from './search.js';
import { apply, now, state, totals } from './state.js';
import { watchWidth } from './width.js';
import { setLanguage, t } from './words.js';

const VIEWS = { cluster, table: cluster, node, pod, pending, history };
const main = document.getElementById('main');
const [clusterRoot, otherRoot] = main.children;
let connection = { kind: 'connecting' };
let shownView = '';

/** The route of the address. On the page of an agent, the start is the view of its node. */
function currentRoute() {
  const current = route();
  const nodeName = state.source === 'node' && current.view === 'cluster' && state.nodes.keys().next().value;
  const target = nodeName ? { ...current, view: 'node', name: nodeName } : current;
  return Object.hasOwn(VIEWS, target.view) ? target : { ...target, view: 'cluster' };
}

function drawHeader() {
  fill(document.getElementById('header'), header(connection));
  setAttribute(document.body, 'data-connection', connection.kind);
  const search = document.getElementById('search');
  if (search !== document.activeElement && search.value !== option('q')) search.value = option('q');
  const { unhealthy } = totals();
  document.title = `${unhealthy ? `(${unhealthy}) ` : ''}Windlass`;
  announce(unhealthy ? t('unhealthyDevices', { n: unhealthy }) : t('allWell'));
}

/** Sets the text of the live region, which screen readers read aloud when it changes. */
function announce(text) {
  const liveRegion = document.getElementById('spoken');
  const announcement = connection.kind === 'live' ? text : '';
  if (liveRegion.textContent !== announcement) liveRegion.textContent = announcement;
}

function drawView() {
  if (!state.isLoaded) return;
  const current = currentRoute();
  const isCluster = VIEWS[current.view] === cluster;
  if (`${current.view} ${current.name}` !== shownView) scrollPositions.set(shownView, scrollY);
  if (option('colour') === 'holder') assignHues();
  // The cluster's many elements stay in the document while another view is shown.
  const [root, other] = isCluster ? [clusterRoot, otherRoot] : [otherRoot, clusterRoot];
  root.hidden = false;
  other.hidden = true;
  fill(root, VIEWS[current.view].render(current));
  if (isCluster) cluster.arrange(root);
  restoreScroll(current);
  refreshCard();
}

/** Last scroll position of each view, by view and name. */
const scrollPositions = new Map();
let scrolledDevice;

/** Restores the scroll position of a view, or scrolls to the device in the address. */
function restoreScroll({ view, name, options }) {
  const key = `${view} ${name}`;
  if (key !== shownView) {
    scrollTo(0, scrollPositions.get(key) ?? 0);
    showCard(undefined);
    scrolledDevice = undefined;
  }
  shownView = key;
  const device = options.get('device');
  if (device !== scrolledDevice) document.getElementById(`device-${device}`)?.scrollIntoView({ block: 'nearest' });
  scrolledDevice = device;
}

/** Draws everything, after a change of the address or of an option. */
function draw() {
  storeOptions();
  const selectedTheme = option('theme');
  if (selectedTheme) setAttribute(document.documentElement, 'data-theme', selectedTheme);
  const language = option('lang') || (/^zh/i.test(navigator.language) ? 'zh' : 'en');
  setAttribute(document.documentElement, 'lang', language === 'zh' ? 'zh-CN' : 'en');
  setLanguage(language);
  document.querySelector('.skip').textContent = t('skip');
  schedule('header', drawHeader);
  schedule('view', drawView);
}

function receive(document) {
  const changes = apply(document);
  cluster.markStale(changes.nodes);
  const current = currentRoute();
  const isViewChanged = `${current.view} ${current.name}` !== shownView;
  if (isViewChanged || VIEWS[current.view].isConcerned(changes, current)) schedule('view', drawView);
  schedule('header', drawHeader);
}

function setConnection(newConnection) {
  const isNew = ['kind', 'text', 'isRefused'].some((part) => newConnection[part] !== connection[part]);
  connection = newConnection;
  if (isNew) schedule('header', drawHeader);
}

// --- User input ---

/** Actions of elements with the attribute `data-do`. */
const ACTIONS = {
  language: otherLanguage, theme, help, retry: requestNow, skip: () => main.focus(),
};

addEventListener('hashchange', draw);
addEventListener('keydown', handleKey);
addEventListener('submit', (event) => {
  event.preventDefault();
  submitToken();
});
addEventListener('change', ({ target }) => target.dataset.option && choose(target.dataset.option, target.value));
addEventListener('input', ({ target }) => {
  if (target.id !== 'search') return;
  suggest();
  if (['cluster', 'table'].includes(currentRoute().view)) choose('q', target.value);
});
addEventListener('click', (event) => {
  const { target } = event;
  const action = target.closest('[data-do]')?.dataset.do;
  if (action) return ACTIONS[action]();
  const link = target.closest('a[data-replace]');
  if (link && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    location.replace(link.getAttribute('href'));
  } else if (!target.closest('a') && target.closest('.tile')) {
    open(target);
  }
  if (!target.closest('.search')) suggest(false);
});

/** Shows the card of a cell, and the links of a device, under the pointer or the focus. */
function onPoint({ target, type }) {
  const place = target.closest?.('.place');
  const cell = !place && target.closest?.('.cell');
  if (cell || type === 'pointerover') showCard(cell || undefined);
  const position = place ? Number(place.dataset.at) : undefined;
  if (currentRoute().view === 'node' && node.focusOn(position)) schedule('view', drawView);
}
addEventListener('pointerover', onPoint);
addEventListener('focusin', onPoint);
addEventListener('scroll', () => showCard(undefined), { passive: true });

/** Updates relative times. */
setInterval(() => {
  for (const element of document.querySelectorAll('time')) {
    const text = ago(Date.parse(element.dateTime), now());
    if (element.textContent !== text) element.textContent = text;
  }
}, 5000);

watchWidth(drawView);
draw();
follow(receive, setConnection);
followDetails(
  () => (currentRoute().view === 'node' ? currentRoute().name : undefined),
  () => schedule('view', drawView),
);
