// Connection to the server: requests the state and its changes, and reports the state of the connection.
//
//   live <──(answer)── lost <──(no answer)── any        401: token    403: forbidden    503: busy
//
// The token is stored for this tab only, and sent only in the header of these requests.

const TOKEN = 'windlass-token';
const MAX_PAUSE_MS = 15_000;
/** Timeout of a request. The server delays an answer without changes for up to 20 s. */
const TIMEOUT_MS = 45_000;
/** Longest delay of a timer: a pause until `wake()`. */
const FOREVER_MS = 2 ** 31 - 1;

let token = readToken();
let wake = () => {};

/**
 * Requests the state forever. Each new document is passed to `onDocument(document)`, each state of the connection to
 * `onConnection({ kind, text, since })`.
 */
export async function follow(onDocument, onConnection) {
  let revision;
  let failures = 0;
  let since;
  for (;;) {
    const start = performance.now();
    try {
      const response = await request(revision);
      const minPause = response.ok ? await handleDocument(response) : await handleRefusal(response, onConnection);
      failures = 0;
      since = undefined;
      const elapsed = performance.now() - start;
      await pause(Math.max(minPause - (response.ok ? elapsed : 0), 0));
    } catch (error) {
      since ??= new Date();
      // Request the complete state next: the server answers at once, while it may delay an answer with changes.
      revision = undefined;
      // `fetch` reports a missing connection as a TypeError, whose message differs by browser.
      onConnection({ kind: 'lost', since, text: error instanceof TypeError ? '' : String(error.message) });
      await pause(Math.min(MAX_PAUSE_MS, 500 * 2 ** failures++));
    }
  }

  /** Applies an answer, and returns the minimum time in ms from this request to the next. */
  async function handleDocument(response) {
    const document = await response.json();
    const isNew = typeof document.revision !== 'string' || document.revision !== revision;
    if (isNew) onDocument(document);
    revision = typeof document.revision === 'string' ? document.revision : undefined;
    onConnection({ kind: 'live' });
    return isNew ? 200 : 2000;
  }
}

function request(revision) {
  const query = revision === undefined ? '' : `?after=${encodeURIComponent(revision)}`;
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(`state${query}`, { headers, cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) });
}

/** Reports an answer that is not a state, and returns the time in ms to wait. */
async function handleRefusal(response, onConnection) {
  const text = (await response.text()).slice(0, 500);
  const seconds = Number(response.headers.get('Retry-After')) || 2;
  switch (response.status) {
    case 401:
      onConnection({ kind: 'token', text, isRefused: Boolean(token) });
      return FOREVER_MS;
    case 403:
      onConnection({ kind: 'forbidden', text });
      return MAX_PAUSE_MS;
    case 503:
      onConnection({ kind: 'busy', text });
      return 1000 * Math.min(60, Math.max(1, seconds));
    default:
      throw new Error(`HTTP ${response.status}`);
  }
}

/** Waits for a time, or until `requestNow()`. */
function pause(ms) {
  return new Promise((resolve) => {
    wake = resolve;
    setTimeout(resolve, ms);
  });
}

/** Sends the next request at once. */
export function requestNow() {
  wake();
}

/** Uses a pasted token. Returns false if it has characters that tokens never have. */
export function useToken(input) {
  const trimmed = input.trim();
  if (!/^[\x21-\x7e]+$/.test(trimmed)) return false;
  token = trimmed;
  try {
    sessionStorage.setItem(TOKEN, token);
  } catch { /* Storage is blocked: the token lasts until the page is closed. */ }
  requestNow();
  return true;
}

function readToken() {
  try {
    return sessionStorage.getItem(TOKEN) ?? '';
  } catch {
    return '';
  }
}
