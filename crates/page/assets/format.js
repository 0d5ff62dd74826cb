// Numbers with units, and times, in the page's language.

import { language } from './words.js';

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
const formats = new Map();

function format(kind, options) {
  const key = language() + kind.name + JSON.stringify(options);
  if (!formats.has(key)) formats.set(key, new kind(language() === 'zh' ? 'zh-CN' : 'en-GB', options));
  return formats.get(key);
}

export const number = (value, digits = 1) =>
  (value < 1e15 ? format(Intl.NumberFormat, { maximumFractionDigits: digits }).format(value) : value.toExponential(1));

export const percent = (value) => `${number(100 * value, 0)} %`;

export function bytes(value) {
  let unit = 0;
  while (value >= 1023.95 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${number(value, value < 100 ? 1 : 0)} ${UNITS[unit]}`;
}

const STEPS = [['second', 60], ['minute', 60], ['hour', 24], ['day', 365], ['year', Infinity]];

/** "5 min ago". */
export function ago(ms, now) {
  let value = (ms - now) / 1000;
  for (const [unit, perNextUnit] of STEPS) {
    if (Math.abs(value) < perNextUnit) {
      return format(Intl.RelativeTimeFormat, { style: 'short', numeric: 'auto' }).format(Math.round(value), unit);
    }
    value /= perNextUnit;
  }
}

export const clock = (time) => format(Intl.DateTimeFormat, { timeStyle: 'medium' }).format(time);

export const absolute = (time) => format(Intl.DateTimeFormat, { dateStyle: 'medium', timeStyle: 'long' }).format(time);

export const day = (time) => format(Intl.DateTimeFormat, { dateStyle: 'medium', timeStyle: 'short' }).format(time);

/** Text of at most `max` characters; a longer one ends with an ellipsis. */
export const clip = (text, max = 200) => (text.length > max ? `${text.slice(0, max)}…` : text);
