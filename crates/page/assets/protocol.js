// The connection: asks for the state, waits for changes, and says how it is.
//
//   live <──(answer)── lost <──(no answer)── any        401: token    403: forbidden    503: busy
//
// The token is kept for this tab only, and goes nowhere but into the header of these requests.

const TOKEN = 'windlass-token';
const LONGEST_PAUSE_MS = 15_000;
/** The server holds a question for up to 20 s. */
const ANSWER_MS = 45_000;
/** Until somebody wakes it. */
const FOR_EVER_MS = 2 ** 31 - 1;

let token = readToken();
let wake = () => {};

/** Asks for ever. `take(document)` gets each new answer; `tell({ kind, text, since })` each state of the connection. */
export async function follow(take, tell) {
  let revision;
  let failures = 0;
  let since;
  for (;;) {
    const asked = performance.now();
    try {
      const response = await ask(revision);
      const wait = response.ok ? await news(response) : await refusal(response, tell);
      failures = 0;
      since = undefined;
      const took = performance.now() - asked;
      await pause(Math.max(wait - (response.ok ? took : 0), 0));
    } catch (error) {
      since ??= new Date();
      // The next question is for all of the state: it is answered at once, while one for changes may be held.
      revision = undefined;
      // A TypeError is fetch's word for "no connection", in each browser another.
      tell({ kind: 'lost', since, text: error instanceof TypeError ? '' : String(error.message) });
      await pause(Math.min(LONGEST_PAUSE_MS, 500 * 2 ** failures++));
    }
  }

  /** Takes an answer, and returns the least time in ms from this question to the next. */
  async function news(response) {
    const document = await response.json();
    const isNews = typeof document.revision !== 'string' || document.revision !== revision;
    if (isNews) take(document);
    revision = typeof document.revision === 'string' ? document.revision : undefined;
    tell({ kind: 'live' });
    return isNews ? 200 : 2000;
  }
}

function ask(revision) {
  const query = revision === undefined ? '' : `?after=${encodeURIComponent(revision)}`;
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(`state${query}`, { headers, cache: 'no-store', signal: AbortSignal.timeout(ANSWER_MS) });
}

/** Tells of an answer that is no state, and returns the time in ms to wait. */
async function refusal(response, tell) {
  const text = (await response.text()).slice(0, 500);
  const seconds = Number(response.headers.get('Retry-After')) || 2;
  switch (response.status) {
    case 401:
      tell({ kind: 'token', text, isRefused: Boolean(token) });
      return FOR_EVER_MS;
    case 403:
      tell({ kind: 'forbidden', text });
      return LONGEST_PAUSE_MS;
    case 503:
      tell({ kind: 'busy', text });
      return 1000 * Math.min(60, Math.max(1, seconds));
    default:
      throw new Error(`HTTP ${response.status}`);
  }
}

/** Waits, or until an answer is wanted now. */
function pause(ms) {
  return new Promise((resolve) => {
    wake = resolve;
    setTimeout(resolve, ms);
  });
}

export function askNow() {
  wake();
}

/** Takes a token as pasted. False: no token has such characters. */
export function useToken(pasted) {
  const given = pasted.trim();
  if (!/^[\x21-\x7e]+$/.test(given)) return false;
  token = given;
  try {
    sessionStorage.setItem(TOKEN, token);
  } catch { /* Storage is blocked: the token serves until the page is left. */ }
  askNow();
  return true;
}

function readToken() {
  try {
    return sessionStorage.getItem(TOKEN) ?? '';
  } catch {
    return '';
  }
}
