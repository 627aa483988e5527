// Numbers as people read them: a unit that fits, three digits, one width. Unknown (null) is a dash, never a zero.

export const UNKNOWN = "\u2013";
const THIN = "\u202f";

function digits(value) {
  const size = Math.abs(value);
  return size >= 99.95 ? value.toFixed(0) : size >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

function scaled(value, units) {
  for (const [from, divisor, unit] of units) {
    if (Math.abs(value) >= from) return `${digits(value / divisor)}${THIN}${unit}`;
  }
  const [, divisor, unit] = units[units.length - 1];
  return `${digits(value / divisor)}${THIN}${unit}`;
}

const DURATIONS = [[5999.5, 3600, "h"], [99.95, 60, "min"], [0.9995, 1, "s"], [0.0009995, 1e-3, "ms"], [0, 1e-6, "\u00b5s"]];
const BYTES = [[1e9, 1e9, "GB"], [1e6, 1e6, "MB"], [1e3, 1e3, "kB"]];

export const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

export function duration(seconds) {
  if (seconds === 0) return "0";
  return isKnown(seconds) ? scaled(seconds, DURATIONS) : UNKNOWN;
}

/** Whole units of a long time: 3 d 4 h, 2 h 5 min, 12 s. */
export function age(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  const whole = Math.max(0, Math.floor(seconds));
  const days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24, minutes = Math.floor(whole / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min` : `${whole} s`;
}

export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  return value < 1000 ? `${value.toFixed(0)}${THIN}B` : scaled(value, BYTES);
}

export function count(value) {
  return isKnown(value) ? Math.round(value).toLocaleString("en").replaceAll(",", THIN) : UNKNOWN;
}

/** Per second; the unit is in the heading. */
export function rate(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value === 0) return "0";
  if (value >= 99999.5) return `${digits(value / 1e3)}${THIN}k`;
  return value >= 99.95 ? count(value) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

export function percent(fraction) {
  return isKnown(fraction) ? `${(100 * fraction).toFixed(fraction > 0 && fraction < 0.1 ? 1 : 0)}${THIN}%` : UNKNOWN;
}

export function times(ratio) {
  return isKnown(ratio) ? `${ratio < 10 ? ratio.toFixed(1) : ratio.toFixed(0)}\u00d7` : UNKNOWN;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", {hour: "2-digit", minute: "2-digit", second: "2-digit"});

/** Of the viewer's own clock and zone. */
export function clock(unixS) {
  return isKnown(unixS) ? CLOCK.format(new Date(unixS * 1000)) : UNKNOWN;
}
