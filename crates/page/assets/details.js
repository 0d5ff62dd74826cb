// Details of one node: links and load, from the node's agent. `windlass cluster page` forwards the request to the
// agent. Other servers answer 404; the page then shows only the data of the cluster half.

import { readNode, state } from './state.js';

const INTERVAL_MS = 3000;
const TIMEOUT_MS = 10_000;

/** Names of nodes without details. */
const unavailable = new Set();
let detail;

/** The node with the details of its agent; without details, the node of the state. */
export function detailedNode(name) {
  const node = state.nodes.get(name);
  return node && detail?.name === name ? detail : node;
}

/**
 * Requests the details of the node on screen, forever. `currentName()` returns the node's name. Each answer calls
 * `onDetails()`.
 */
export async function followDetails(currentName, onDetails) {
  for (;;) {
    const node = currentName();
    if (node && state.source === 'cluster' && state.nodes.get(node)?.hasAgent && !unavailable.has(node)) {
      detail = await fetchDetails(node);
      if (detail && currentName() === node) onDetails();
    } else if (!node) {
      detail = undefined;
    }
    await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
  }
}

async function fetchDetails(name) {
  try {
    const address = `node/${encodeURIComponent(name)}/state`;
    const response = await fetch(address, { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (response.status === 404) unavailable.add(name);
    if (!response.ok) return undefined;
    const node = readNode((await response.json()).nodes?.[0]);
    const devices = node.devices.map((device) => ({ ...withHolderNames(name, device), isDetailed: true }));
    return { ...node, name, devices };
  } catch {
    return undefined;
  }
}

/** Takes holders from the state if the agent does not disclose their names. */
function withHolderNames(name, device) {
  if (device.holders.every((holder) => holder.pod || holder.claim)) return device;
  const known = state.nodes.get(name)?.devices.find((other) => other.id === device.id);
  return known ? { ...device, holders: known.holders } : device;
}
