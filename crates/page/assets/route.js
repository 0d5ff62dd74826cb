// Route in the address's fragment: #/view/name?option=value. The browser stores some options.

/** Values of each option; the first one is the default. An empty list allows any text. */
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
const STORED = ['colour', 'sort', 'size', 'lang', 'theme'];

/** The route of the address. Each cell reads it, so it is cached until the address changes. */
let cached = {};
export function route() {
  if (cached.hash !== location.hash) cached = { hash: location.hash, ...parseRoute() };
  return cached;
}

function parseRoute() {
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

/** As encodeURIComponent, but replaces a lone surrogate, for which that function throws. */
function encode(text) {
  return encodeURIComponent(new TextDecoder().decode(new TextEncoder().encode(text)));
}

/** The value of an option: from the address, else the stored one, else the default. */
export function option(name) {
  const isValid = (value) => value && (OPTIONS[name].length === 0 || OPTIONS[name].includes(value));
  return [route().options.get(name), storedOption(name)].find(isValid) ?? OPTIONS[name][0] ?? '';
}

/** The address with another value of an option. */
export function withOption(name, value) {
  const { view, name: viewName } = route();
  const options = new URLSearchParams(route().options);
  if (value === (OPTIONS[name][0] ?? '') && !storedOption(name)) options.delete(name);
  else options.set(name, value);
  return href(view, viewName, options);
}

/** Sets an option without an entry in the browser's history, such as for each letter of a search. */
export function choose(name, value) {
  history.replaceState(null, '', withOption(name, value));
  dispatchEvent(new Event('hashchange'));
}

/** Stores the options of the address that are in STORED. */
export function storeOptions() {
  const { options } = route();
  for (const name of STORED.filter((it) => options.has(it))) {
    try {
      localStorage.setItem(`windlass-${name}`, options.get(name));
    } catch { /* Storage is blocked: the address still has the option. */ }
  }
}

function storedOption(name) {
  try {
    return STORED.includes(name) ? localStorage.getItem(`windlass-${name}`) : null;
  } catch {
    return null;
  }
}
