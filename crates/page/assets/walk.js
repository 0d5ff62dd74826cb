// Focus among the cells. The Tab key reaches one cell; the arrow keys move the focus to other cells.

/** The cell that the Tab key reaches: { node, position }. */
let roving;

export const isRoving = (node, device) => roving?.node === node.name && roving.position === device.position;

/** Makes the first device of the node `first` reachable by Tab, if the node of the previous cell no longer exists. */
export function resetFocus(exists, first) {
  if (!exists(roving?.node)) roving = first && { node: first.name, position: 0 };
}

/** Moves the focus by an arrow key in a list with `columns` columns. Returns false if no cell has the focus. */
export function moveFocus(key, list, columns) {
  const from = document.activeElement?.closest('.cell');
  const container = from?.closest('.tile, .row');
  if (!container) return false;
  const inTable = container.matches('.row');
  const down = inTable ? 1 : columns;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -down, ArrowDown: down }[key];
  const isSideways = ['ArrowLeft', 'ArrowRight'].includes(key) && !inTable;
  const at = [...container.querySelectorAll('.cell')].indexOf(from);
  const neighbour = isSideways && container.querySelectorAll('.cell')[at + step];
  if (neighbour) return focus(neighbour);
  // Enter the next tile with a cell, at its near end or at the same position.
  const containers = [...list.querySelectorAll(inTable ? '.row' : '.tile')];
  for (let next = containers.indexOf(container) + step; containers[next]; next += Math.sign(step)) {
    const cells = [...containers[next].querySelectorAll('.cell')];
    const entry = isSideways ? cells.at(step > 0 ? 0 : -1) : cells[Math.min(at, cells.length - 1)];
    if (entry) return focus(entry);
  }
  return true;
}

/** Moves the focus to the next unhealthy device. */
export function nextUnhealthy() {
  const cells = [...document.querySelectorAll('.cell[data-health="unhealthy"]')];
  const all = cells.filter((cell) => !cell.closest('[hidden], .place'));
  if (!all.length) return false;
  const here = document.activeElement;
  const isAfter = (cell) => here.compareDocumentPosition(cell) & Node.DOCUMENT_POSITION_FOLLOWING;
  return focus((here.matches('.cell') && all.find(isAfter)) || all[0]);
}

function focus(cellElement) {
  document.querySelector('.cell[tabindex="0"]')?.setAttribute('tabindex', -1);
  roving = { node: cellElement.closest('[data-node]').dataset.node, position: Number(cellElement.dataset.at) };
  cellElement.setAttribute('tabindex', 0);
  cellElement.focus();
  cellElement.scrollIntoView({ block: 'nearest' });
  return true;
}
