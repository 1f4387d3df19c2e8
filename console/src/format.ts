// Figures as people read them.

const SI = ["", "k", "M", "G", "T", "P"];

/** Three significant digits: `0.123`, `12.3`, `1,230`. */
export function number(value: number): string {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: digits });
}

export function count(value: number): string {
  return value.toLocaleString("en", { maximumFractionDigits: 0 });
}

/** `1.23 MB`; decimal, as disks and published studies count. */
export function bytes(value: number): string {
  if (!Number.isFinite(value)) return "–";
  let scaled = value;
  let unit = 0;
  while (Math.abs(scaled) >= 999.5 && unit < SI.length - 1) {
    scaled /= 1000;
    unit += 1;
  }
  return `${number(scaled)} ${SI[unit]}B`;
}

export const bandwidth = (value: number) => `${bytes(value)}/s`;
export const rate = (value: number) => `${number(value)}/s`;

/** Nanoseconds: `850 µs`, `12.3 ms`, `1.5 s`. */
export function latency(ns: number): string {
  if (!Number.isFinite(ns)) return "–";
  if (ns === 0) return "0 ms";
  if (ns < 999_500) return `${number(ns / 1e3)} µs`;
  if (ns < 999_500_000) return `${number(ns / 1e6)} ms`;
  return `${number(ns / 1e9)} s`;
}

/** Seconds: `45 s`, `3 min 20 s`, `2 h 5 min`. */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${number(Math.max(0, seconds))} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
}

/** On a chart's axis: `0:45`, `12:05`, `1:02:05`. */
export function clock(seconds: number): string {
  const sign = seconds < 0 ? "−" : "";
  const whole = Math.round(Math.abs(seconds));
  const two = (value: number) => String(value).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return sign + (h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`);
}

/** The same on an axis that is zoomed in to parts of a second: `0:45.25`. */
export function fineClock(seconds: number): string {
  const rest = Math.abs(seconds);
  return `${seconds < 0 ? "−" : ""}${Math.floor(rest / 60)}:${(rest % 60).toFixed(2).padStart(5, "0")}`;
}

export function percent(part: number): string {
  if (!Number.isFinite(part)) return "–";
  const value = part * 100;
  if (value > 99 && value < 100) return `${(Math.floor(value * 1000) / 1000).toString()} %`;
  return `${number(value)} %`;
}

/** A change, signed. */
export function change(from: number, to: number): string {
  if (!Number.isFinite(from) || !Number.isFinite(to) || from === 0) return "–";
  const part = (to / from - 1) * 100;
  const digits = Math.abs(part) >= 10 ? 0 : 1;
  return `${part > 0 ? "+" : part < 0 ? "−" : "±"}${Math.abs(part).toFixed(digits)} %`;
}

export function time(millis: number): string {
  return new Date(millis).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

export const ofDay = (millis: number) => new Date(millis).toLocaleTimeString();

/** A latency of `ops` requests; of none there is none. */
export const latencyOf = (ops: number, ns: number) => (ops > 0 ? latency(ns) : "–");

export const plural = (n: number, one: string, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;

/** A name of a client's as text of the page: characters that turn the direction of what follows, or that show nothing, are told by their number. */
export function shownName(name: string): string {
  return name.replace(/[\u0000-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}
