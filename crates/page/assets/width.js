// Width of the main element, measured when it changes. A measurement while drawing would force a layout.

import { schedule } from './frames.js';

export const width = { ofMain: document.documentElement.clientWidth };

/** Schedules `draw` whenever the width changes. */
export function watchWidth(draw) {
  new ResizeObserver(([{ borderBoxSize }]) => {
    const newWidth = Math.round(borderBoxSize[0].inlineSize);
    if (newWidth !== width.ofMain) schedule('view', draw);
    width.ofMain = newWidth;
  }).observe(document.getElementById('main'));
}
