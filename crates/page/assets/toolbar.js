// Toolbar above the cluster's list: filters, orders, colours, and the legend with its numbers.

import { CLASSES, colour, legend } from './colours.js';
import { h } from './dom.js';
import { number } from './format.js';
import { untrusted } from './parts.js';
import { href, option, OPTIONS, route, withOption } from './route.js';
import { state, totals } from './state.js';
import { t } from './words.js';

export function toolbar(asTable) {
  const sums = totals();
  const counts = { all: sums.nodes, unhealthy: sums.unhealthyNodes, free: sums.free, shared: sums.shared };
  return h('div.toolbar', {},
    segments('filter', OPTIONS.filter, (value) => [t(value), h('b', {}, number(counts[value]))]),
    segments('colour', OPTIONS.colour, (value) => t(`colour_${value}`)),
    select('sort'), !asTable && select('size'),
    h('a.button', { href: href(asTable ? 'cluster' : 'table', '', route().options), title: 't' },
      t(asTable ? 'tiles' : 'table')));
}

const segments = (name, values, label) => h('div.segments', { role: 'group', 'aria-label': t(name) },
  values.map((value) => h('a', {
    href: withOption(name, value), 'data-replace': true, 'aria-current': value === option(name) && 'true',
  }, label(value))));

const select = (name) => h('select', { 'data-option': name, 'aria-label': t(name) },
  OPTIONS[name].map((value) => h('option', { value, selected: value === option(name) }, t(`${name}_${value}`))));

/** Entries of the legend that are hidden if their number is zero. */
const OPTIONAL = ['none', 'others', 'unknown'];

/** The legend. `shown` is the number of nodes that pass the filter and the search. */
export function legendLine(shownCount) {
  const mode = option('colour');
  const total = legend(mode);
  const keys = legendKeys(mode, total).filter(([key]) => total.has(key) || !OPTIONAL.includes(key));
  return h('div.legend', { 'data-mode': mode }, h('span.dim', {}, t(`legend_${mode}`)),
    keys.map(([key, name]) => h('span.entry', { 'data-entry': name },
      h(`i.swatch.${key.slice(0, 1) === '@' ? 'hue' : key}`, { style: { background: colour(key) } }),
      untrusted(name, 40), ' ', h('b', {}, number(total.get(key) ?? 0)))),
    shownCount < state.nodes.size
      && h('strong', {}, t('shownOf', { n: number(shownCount), all: number(state.nodes.size) })));
}

/** Keys of the legend with their names, in order. */
function legendKeys(mode, total) {
  const word = (key) => [key, t(`entry_${key}`)];
  const classes = (prefix) =>
    CLASSES.map((bound, index) => [prefix + index, `${bound}–${CLASSES[index + 1] ?? 100} %`]);
  switch (mode) {
    case 'health': return ['held', 'idle', 'unhealthy', 'unknown'].map(word);
    case 'holder': {
      const hues = [...total.keys()].filter((key) => key.startsWith('@'));
      hues.sort((one, other) => total.get(other) - total.get(one));
      return [...hues.map((key) => [key, key.slice(1)]), ...['others', 'held', 'idle'].filter((key) => total.has(key)).map(word)];
    }
    case 'fragmentation': return [...classes('f'), ...['held', 'unhealthy', 'unknown', 'none'].map(word)];
    default: return [...classes('s'), word('none')];
  }
}
