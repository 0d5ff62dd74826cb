// The address's fragment says what is shown: #/view/name?option=value. Choices of taste are remembered.

/** Values of each option; the first is the usual one. An empty list: any text. */
export const OPTIONS = {
  colour: ['health', 'holder', 'memory', 'utilization', 'fragmentation'],
  filter: ['all', 'unhealthy', 'free', 'shared'],
  sort: ['name', 'problems', 'free', 'fragmented'],
  size: ['auto', 'tiny', 'small', 'medium', 'large', 'huge'],
  kind: [],
  q: [],
  lang: [undefined, 'en', 'zh'],
  theme: [undefined, 'light', 'dark'],
};
const REMEMBERED = ['colour', 'sort', 'size', 'lang', 'theme'];

/** The route of the address. It is read for each cell, so it is kept until the address changes. */
let known = {};
export function route() {
  if (known.hash !== location.hash) known = { hash: location.hash, ...read() };
  return known;
}

function read() {
  const [path, ...query] = location.hash.replace(/^#\/?/, '').split('?');
  const [view, ...name] = path.split('/').map(decode);
  return { view: view || 'cluster', name: name.join('/'), options: new URLSearchParams(query.join('?')) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function href(view, name = '', options = {}) {
  const path = [view === 'cluster' ? '' : view, ...(name ? name.split('/') : [])].map(encode).join('/');
  const query = new URLSearchParams(options).toString();
  return `#/${path}${query && `?${query}`}`;
}

/** As encodeURIComponent, for any text: half of a surrogate pair, which that refuses, is replaced. */
function encode(text) {
  return encodeURIComponent(new TextDecoder().decode(new TextEncoder().encode(text)));
}

/** The value of an option: of the address, as remembered, or the usual one. */
export function option(name) {
  const isValid = (value) => value && (OPTIONS[name].length === 0 || OPTIONS[name].includes(value));
  return [route().options.get(name), remembered(name)].find(isValid) ?? OPTIONS[name][0] ?? '';
}

/** The address with another value of an option. */
export function withOption(name, value) {
  const { view, name: shown } = route();
  const options = new URLSearchParams(route().options);
  if (value === (OPTIONS[name][0] ?? '') && !remembered(name)) options.delete(name);
  else options.set(name, value);
  return href(view, shown, options);
}

/** Chooses without an entry in the browser's history, as for each letter of a search. */
export function choose(name, value) {
  history.replaceState(null, '', withOption(name, value));
  dispatchEvent(new Event('hashchange'));
}

/** Keeps the choices of taste that the address has. */
export function remember() {
  const { options } = route();
  for (const name of REMEMBERED.filter((it) => options.has(it))) {
    try {
      localStorage.setItem(`windlass-${name}`, options.get(name));
    } catch { /* Storage is blocked: the address still has the choice. */ }
  }
}

function remembered(name) {
  try {
    return REMEMBERED.includes(name) ? localStorage.getItem(`windlass-${name}`) : null;
  } catch {
    return null;
  }
}
