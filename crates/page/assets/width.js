// The width of the main part, measured when it changes: to ask the browser in a drawing costs a layout in its midst.

import { later } from './frames.js';

export const width = { ofMain: document.documentElement.clientWidth };

/** Calls `draw` in a later frame, whenever the width is another. */
export function watchWidth(draw) {
  new ResizeObserver(([{ borderBoxSize }]) => {
    const now = Math.round(borderBoxSize[0].inlineSize);
    if (now !== width.ofMain) later('view', draw);
    width.ofMain = now;
  }).observe(document.getElementById('main'));
}
