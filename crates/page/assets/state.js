// The newest state of all nodes. Documents are untrusted: missing values and values of a wrong type get defaults here,
// so that views need no checks. A node is never changed, only replaced.

export const state = {
  isLoaded: false, source: 'cluster', isSimulated: false, version: '', clockOffset: 0,
  summary: {}, nodes: new Map(), pending: [], history: [],
};

/** Maximum number of events, as on the server. */
const MAX_EVENTS = 500;

/** Devices whose health or holders changed, until the cluster's view has drawn them. */
export const changed = new WeakSet();

/** Applies a document. Returns the changes: `nodes` (names, with removed nodes), `pending`, `history` (booleans). */
export function apply(document) {
  const isComplete = document.complete !== false || !state.isLoaded;
  const previousNodes = state.nodes;
  if (isComplete) state.nodes = new Map();
  for (const raw of list(document.nodes)) {
    const node = readNode(raw);
    if (!node.name) continue;
    if (previousNodes.has(node.name)) markChanged(previousNodes.get(node.name), node);
    state.nodes.set(node.name, node);
  }
  const names = new Set(list(document.nodes).map((node) => text(node?.name)));
  const removedNames = isComplete
    ? [...previousNodes.keys()].filter((name) => !state.nodes.has(name)) : list(document.gone).map(text);
  removedNames.forEach((name) => state.nodes.delete(name) || names.delete(name));
  removedNames.forEach((name) => names.add(name));
  const changes = { nodes: names, pending: false, history: false };
  for (const [name, readItem] of [['pending', readPending], ['history', readEvent]]) {
    if (!isComplete && document[name] === undefined) continue;
    const items = list(document[name]).map(readItem);
    // A document with changes has only the new events.
    state[name] = isComplete || name !== 'history' ? items : [...state.history, ...items].slice(-MAX_EVENTS);
    changes[name] = true;
  }
  if (isComplete || document.summary) state.summary = numbers(document.summary ?? {});
  if (isComplete || document.source) state.source = document.source === 'node' ? 'node' : 'cluster';
  if (isComplete || document.simulated !== undefined) state.isSimulated = Boolean(document.simulated);
  state.version = text(document.version) || state.version;
  const time = Date.parse(text(document.time));
  if (!Number.isNaN(time)) state.clockOffset = time - Date.now();
  state.isLoaded = true;
  holdingsByName = undefined;
  return changes;
}

/** The server's time in ms, because this machine's clock may be wrong. */
export const now = () => Date.now() + state.clockOffset;

function markChanged(before, after) {
  const previous = new Map(before.devices.map((device) => [device.id, device.fingerprint]));
  for (const device of after.devices) {
    if (previous.get(device.id) !== device.fingerprint) changed.add(device);
  }
}

const text = (value) => (typeof value === 'string' ? value : typeof value === 'number' ? String(value) : '');
const list = (value) => (Array.isArray(value) ? value : []);
const amount = (value) => (Number.isFinite(value) && value >= 0 ? value : undefined);
const fraction = (value) => (amount(value) === undefined ? undefined : Math.min(1, value));
const object = (value) => (value && typeof value === 'object' ? value : {});
const numbers = (value) => Object.fromEntries(Object.entries(object(value)).map(([key, it]) => [key, amount(it)]));

export function readNode(raw) {
  raw = object(raw);
  const devices = list(raw.devices).map(readDevice);
  const ids = new Map(devices.map((device) => [device.id, device]));
  for (const device of devices) {
    const parent = ids.get(device.parent);
    if (parent && parent !== device && !parent.parent) parent.parts.push(device);
    else device.isWhole = true;
  }
  const { idleGpus, freeGpus, fragmentedGpus, cpuFree, memoryFreeBytes } = numbers(raw);
  const wholeGpus = devices.filter((device) => device.isWhole && device.kind === 'gpu');
  const idle = idleGpus ?? wholeGpus.reduce((sum, device) => sum + (device.health === 'healthy' ? device.idle : 0), 0);
  return {
    name: text(raw.name), hasAgent: raw.agent !== false, devices, idle,
    free: freeGpus ?? wholeGpus.filter((it) => it.health === 'healthy' && it.idle === 1).length,
    fragmented: fragmentedGpus, cpuFree, memoryFree: memoryFreeBytes,
    links: list(raw.links).map(readLink).filter(({ a, b }) => devices[a] && devices[b] && a !== b),
    unhealthy: devices.filter((it) => it.health === 'unhealthy').length,
    unknown: devices.filter((it) => it.health === 'unknown').length,
    shared: devices.filter((it) => it.holders.length > 1 || (it.idle > 0 && it.idle < 1) || it.parts.length).length,
    overLimit: devices.reduce((sum, it) => sum + it.holders.filter((holder) => holder.isOverLimit).length, 0),
  };
}

const HEALTH = ['healthy', 'unhealthy', 'unknown'];

function readDevice(raw, position) {
  raw = object(raw);
  const holders = list(raw.holders).map(readHolder);
  const health = HEALTH.includes(raw.health) ? raw.health : 'unknown';
  return {
    position, id: text(raw.id), index: amount(raw.index), kind: text(raw.kind), product: text(raw.product),
    health, reason: text(raw.reason), action: text(raw.action), resource: text(raw.resource),
    enforcement: text(raw.enforcement), memory: amount(raw.memoryBytes), memoryUsed: amount(raw.memoryUsedBytes),
    utilization: fraction(raw.utilization), celsius: amount(raw.temperatureCelsius), watts: amount(raw.powerWatts),
    numa: amount(raw.numaNode), pci: text(raw.pciAddress), parent: text(raw.parent),
    idle: fraction(raw.idle) ?? (holders.length ? 0 : 1), holders, parts: [], isWhole: false,
    fingerprint: `${health} ${holders.map(holderName).join(' ')}`,
  };
}

function readHolder(raw) {
  raw = object(raw);
  return {
    pod: text(raw.pod), claim: text(raw.claim), container: text(raw.container),
    memory: amount(raw.memoryBytes), compute: amount(raw.compute), memoryUsed: amount(raw.memoryUsedBytes),
    isOverLimit: raw.overLimit === true,
  };
}

/** The name of a holder: its pod, or else its claim. */
export const holderName = (holder) => holder.pod || holder.claim || '?';

function readLink(raw) {
  raw = object(raw);
  return { a: amount(raw.a), b: amount(raw.b), kind: text(raw.kind) };
}

function readPending(raw) {
  raw = object(raw);
  const reasons = list(raw.reasons).map(object)
    .map(({ reason, nodes }) => ({ reason: text(reason), nodes: amount(nodes) ?? 0 }));
  return {
    pod: text(raw.pod) || '?', since: text(raw.since), request: text(raw.request), help: text(raw.help),
    reasons: reasons.sort((one, other) => other.nodes - one.nodes), isExplained: Array.isArray(raw.reasons),
  };
}

function readEvent(raw) {
  const parts = ['time', 'node', 'device', 'pod', 'kind', 'text'].map((name) => [name, text(object(raw)[name])]);
  const event = Object.fromEntries(parts);
  return { ...event, kind: event.kind || '?' };
}

let holdingsByName;

/** Devices of each pod or claim: name -> [{ node, device, holder }]. Computed on demand. */
export function holdings() {
  if (holdingsByName) return holdingsByName;
  holdingsByName = new Map();
  for (const node of state.nodes.values()) {
    for (const device of node.devices) {
      for (const holder of device.holders) {
        const name = holderName(holder);
        if (!holdingsByName.has(name)) holdingsByName.set(name, []);
        holdingsByName.get(name).push({ node, device, holder });
      }
    }
  }
  return holdingsByName;
}

/** Totals over all nodes. */
export function totals() {
  const sums = {
    nodes: state.nodes.size,
    devices: 0,
    unhealthy: 0,
    unknown: 0,
    unhealthyNodes: 0,
    free: 0,
    shared: 0,
    overLimit: 0,
  };
  for (const node of state.nodes.values()) {
    sums.devices += node.devices.length;
    sums.unhealthy += node.unhealthy;
    sums.unknown += node.unknown;
    sums.unhealthyNodes += node.unhealthy > 0;
    sums.free += node.free > 0;
    sums.shared += node.shared > 0;
    sums.overLimit += node.overLimit;
  }
  return sums;
}
