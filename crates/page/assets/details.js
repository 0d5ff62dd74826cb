// One node in detail. `windlass cluster page` asks the node's agent, which knows links and load; other servers answer 404,
// and the node is shown as the cluster half knows it.

import { readNode, state } from './state.js';

const PAUSE_MS = 3000;
const ANSWER_MS = 10_000;

/** Nodes whose agent cannot be asked. */
const silent = new Set();
let detail;

/** The node as its agent sees it, else as the cluster half does. */
export function known(name) {
  const node = state.nodes.get(name);
  return node && detail?.name === name ? detail : node;
}

/** Asks the agent of the node that is looked at. `name()` gives it; `taken()` is told of each answer. */
export async function followDetails(name, taken) {
  for (;;) {
    const node = name();
    if (node && state.source === 'cluster' && state.nodes.get(node)?.hasAgent && !silent.has(node)) {
      detail = await ask(node);
      if (detail && name() === node) taken();
    } else if (!node) {
      detail = undefined;
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

async function ask(name) {
  try {
    const address = `node/${encodeURIComponent(name)}/state`;
    const response = await fetch(address, { cache: 'no-store', signal: AbortSignal.timeout(ANSWER_MS) });
    if (response.status === 404) silent.add(name);
    if (!response.ok) return undefined;
    const document = await response.json();
    // The cluster half does not know which machines are simulated.
    state.isSimulated ||= Boolean(document.simulated);
    const node = readNode(document.nodes?.[0]);
    return { ...node, name, devices: node.devices.map((device) => named(name, device)) };
  } catch {
    return undefined;
  }
}

/** An agent may keep the names of pods to itself; the cluster half knows them. */
function named(name, device) {
  if (device.holders.every((holder) => holder.pod || holder.claim)) return device;
  const same = state.nodes.get(name)?.devices.find((other) => other.id === device.id);
  return same ? { ...device, holders: same.holders } : device;
}
