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
  const focusedCell = document.activeElement?.closest('.cell');
  const container = focusedCell?.closest('.tile, .row');
  if (!container) return false;
  const isTable = container.matches('.row');
  const down = isTable ? 1 : columns;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -down, ArrowDown: down }[key];
  const isSideways = ['ArrowLeft', 'ArrowRight'].includes(key) && !isTable;
  const position = [...container.querySelectorAll('.cell')].indexOf(focusedCell);
  const neighbour = isSideways && container.querySelectorAll('.cell')[position + step];
  if (neighbour) return focus(neighbour);
  // Enter the next tile with a cell, at its near end or at the same position.
  const containers = [...list.querySelectorAll(isTable ? '.row' : '.tile')];
  for (let next = containers.indexOf(container) + step; containers[next]; next += Math.sign(step)) {
    const cells = [...containers[next].querySelectorAll('.cell')];
    const entry = isSideways ? cells.at(step > 0 ? 0 : -1) : cells[Math.min(position, cells.length - 1)];
    if (entry) return focus(entry);
  }
  return true;
}

/** Moves the focus to the next unhealthy device. */
export function nextUnhealthy() {
  const cells = [...document.querySelectorAll('.cell[data-health="unhealthy"]')];
  const visibleCells = cells.filter((cell) => !cell.closest('[hidden], .place'));
  if (!visibleCells.length) return false;
  const activeElement = document.activeElement;
  const isAfter = (cell) => activeElement.compareDocumentPosition(cell) & Node.DOCUMENT_POSITION_FOLLOWING;
  return focus((activeElement.matches('.cell') && visibleCells.find(isAfter)) || visibleCells[0]);
}

function focus(cellElement) {
  document.querySelector('.cell[tabindex="0"]')?.setAttribute('tabindex', -1);
  roving = { node: cellElement.closest('[data-node]').dataset.node, position: Number(cellElement.dataset.at) };
  cellElement.setAttribute('tabindex', 0);
  cellElement.focus();
  cellElement.scrollIntoView({ block: 'nearest' });
  return true;
}
