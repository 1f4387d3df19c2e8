// From what a run tells to what a chart draws. Pure, so that it is tested without a page.

import type { OperationFigures, OperationSample, ResourceSample, Sample, StageFigures } from "./api";

/** x and y; NaN breaks the line. */
export type Point = [number, number];

export interface Series {
  name: string;
  points: Point[];
  /** Which of the palette; the same operation has the same everywhere. */
  color: number;
  dashed?: boolean;
}

export type Pick = (operation: OperationSample, sample: Sample) => number;

/** Lines of one figure over time, a line per operation; x is seconds since `start`. */
export function overTime(samples: Sample[], start: number, pick: Pick, names: string[], colors = colorsOf(names)): Series[] {
  const lines = new Map<string, Point[]>(names.map((name) => [name, []]));
  const last = new Map<string, number>();
  const several = worksSideBySide(samples);
  const known = operationsOfWorks(samples);
  for (const sample of withoutRests(samples)) {
    // An operation that completed nothing in an interval has done nothing in it, which is zero.
    const there = new Set(sample.operations.map(title));
    const idle = [...(known.get(workKey(sample))?.values() ?? [])].filter((operation) => !there.has(title(operation)));
    for (const operation of [...sample.operations, ...idle]) {
      const name = lineName(sample, operation, several);
      const points = lines.get(name);
      if (!points) continue;
      const x = sample.at - start;
      const before = last.get(name);
      // Nothing was told for a while: no line through it.
      if (before !== undefined && x - before > Math.max(3 * sample.seconds, 2)) points.push([(x + before) / 2, NaN]);
      points.push([x, pick(operation, sample)]);
      last.set(name, x);
    }
  }
  return names.map((name) => ({ name, color: colors.get(name) ?? 0, points: lines.get(name) ?? [] }));
}

/** Operations in the order of the palette. */
const PALETTE = ["read", "write", "delete", "list", "head", "post", "copy"];
const PALETTE_SIZE = 8;

/**
 * The colour of each line: an operation's own wherever it has a line of its own, on every plot of every run;
 * those of several works or size classes share none with another operation of the run while colours last.
 */
export function colorsOf(names: string[]): Map<string, number> {
  const own = (word: string | undefined) => PALETTE.indexOf(word ?? "");
  const wholes = names.map((name) => own(name.split(" ").at(-1)));
  const taken = new Set(names.flatMap((name) => name.split(" ").map(own)).filter((color) => color >= 0));
  const colors = new Map<string, number>();
  const used = new Set<number>();
  names.forEach((name, n) => {
    let color = wholes[n]!;
    if (color < 0 || used.has(color)) {
      const free = Array.from({ length: PALETTE_SIZE }, (_, place) => place).filter((place) => !taken.has(place) && !used.has(place));
      color = free[0] ?? n % PALETTE_SIZE;
    }
    used.add(color);
    colors.set(name, color);
  });
  return colors;
}

/** Name and size class. */
const title = (operation: OperationSample) => (operation.size_class ? `${operation.name} ${operation.size_class}` : operation.name);

const workKey = (sample: Sample) => `${sample.stage}\n${sample.work}`;

/** Operations that each work of each stage had, with nothing done. */
function operationsOfWorks(samples: Sample[]): Map<string, Map<string, OperationSample>> {
  const found = new Map<string, Map<string, OperationSample>>();
  for (const sample of samples) {
    let of = found.get(workKey(sample));
    if (!of) found.set(workKey(sample), (of = new Map()));
    for (const operation of sample.operations) of.set(title(operation), { ...operation, ops: 0, bytes: 0, errors: 0, mean_ns: 0, p50_ns: 0, p95_ns: 0, p99_ns: 0, max_ns: 0 });
  }
  return found;
}

/** The last interval of a work joins the one before it where it is only a rest of one: a rate over it is chance. */
function withoutRests(samples: Sample[]): Sample[] {
  const places = new Map<string, number[]>();
  samples.forEach((sample, place) => {
    const of = places.get(workKey(sample));
    if (of) of.push(place);
    else places.set(workKey(sample), [place]);
  });
  const out: (Sample | null)[] = [...samples];
  for (const of of places.values()) {
    const lengths = of.map((place) => samples[place]!.seconds).sort((a, b) => a - b);
    const [before, last] = of.slice(-2);
    if (of.length < 3 || samples[last!]!.seconds >= 0.5 * lengths[lengths.length >> 1]!) continue;
    out[before!] = null;
    out[last!] = joined(samples[before!]!, samples[last!]!);
  }
  return out.filter((sample) => sample !== null);
}

function joined(first: Sample, second: Sample): Sample {
  const operations = second.operations.map((two) => {
    const one = first.operations.find((operation) => title(operation) === title(two));
    if (!one) return two;
    // Percentiles do not add up: those of more requests stand.
    const shown = one.ops >= two.ops ? one : two;
    return { ...shown, ops: one.ops + two.ops, bytes: one.bytes + two.bytes, errors: one.errors + two.errors, max_ns: Math.max(one.max_ns, two.max_ns) };
  });
  const missing = first.operations.filter((one) => !second.operations.some((two) => title(two) === title(one)));
  return { ...second, seconds: first.seconds + second.seconds, operations: [...missing, ...operations] };
}

/** Lines of a run's distributions: an operation each, of its work where a stage has several. */
export function figureName(stages: StageFigures[], operation: OperationFigures): string {
  const several = stages.some((stage) => new Set(stage.operations.map((o) => o.work)).size > 1);
  return several ? `${operation.work} ${operation.name}` : operation.name;
}

/** The lines there are to draw, in the order in which they came up. */
export function lineNames(samples: Sample[]): string[] {
  const several = worksSideBySide(samples);
  const names = new Set<string>();
  for (const sample of samples) for (const operation of sample.operations) names.add(lineName(sample, operation, several));
  return [...names];
}

function lineName(sample: Sample, operation: OperationSample, several: boolean): string {
  return several ? `${sample.work} ${title(operation)}` : title(operation);
}

/** Does a stage have more than one work with operations? Then operations alone are ambiguous. */
function worksSideBySide(samples: Sample[]): boolean {
  const works = new Map<string, string>();
  for (const sample of samples) {
    const known = works.get(sample.stage);
    if (known !== undefined && known !== sample.work) return true;
    works.set(sample.stage, sample.work);
  }
  return false;
}

export interface Now {
  rate: number;
  bandwidth: number;
  failures: number;
  p50: number;
  p99: number;
  stage: string;
  phase: string;
  progress: number;
  left: number | null;
}

/** The last interval of every work of the stage under way, together. */
export function latest(samples: Sample[]): Now | null {
  const end = samples[samples.length - 1];
  if (!end) return null;
  const now: Now = { rate: 0, bandwidth: 0, failures: 0, p50: 0, p99: 0, stage: end.stage, phase: end.phase, progress: 1, left: null };
  const seen = new Set<string>();
  for (let n = samples.length - 1; n >= 0; n -= 1) {
    const sample = samples[n]!;
    if (sample.stage !== end.stage || seen.size > 64) break;
    if (seen.has(sample.work)) continue;
    const whole = n === 0 || samples[n - 1]!.stage !== sample.stage || sample.seconds > 0.5 * samples[n - 1]!.seconds;
    if (!whole) continue;
    seen.add(sample.work);
    now.progress = Math.min(now.progress, sample.progress);
    if (sample.left !== null) now.left = Math.max(now.left ?? 0, sample.left);
    if (end.at - sample.at > 3 * Math.max(sample.seconds, 1)) continue;
    const seconds = sample.seconds || 1;
    for (const operation of sample.operations) {
      now.rate += operation.ops / seconds;
      now.bandwidth += operation.bytes / seconds;
      now.p50 = Math.max(now.p50, operation.p50_ns);
      now.p99 = Math.max(now.p99, operation.p99_ns);
    }
  }
  now.failures = samples.reduce((sum, s) => sum + s.operations.reduce((all, o) => all + o.errors, 0), 0);
  return now;
}

export interface Resource {
  name: string;
  unit: "cores" | "bytes" | "bytes_per_second" | "part" | "number";
  series: Series[];
}

/** One chart per quantity, a line per host or device. */
export function resources(samples: ResourceSample[], start: number): Resource[] {
  const all = new Map<string, { unit: Resource["unit"]; lines: Map<string, Point[]> }>();
  const add = (quantity: string, unit: Resource["unit"], line: string, x: number, y: number) => {
    let found = all.get(quantity);
    if (!found) all.set(quantity, (found = { unit, lines: new Map() }));
    let points = found.lines.get(line);
    if (!points) found.lines.set(line, (points = []));
    points.push([x, y]);
  };
  for (const sample of samples) {
    const x = sample.at - start;
    const host = sample.host;
    add("CPU, cores in use", "cores", host, x, sample.cpu.user + sample.cpu.system + sample.cpu.steal);
    add("CPU, waiting for disks", "cores", host, x, sample.cpu.iowait);
    add("Memory used", "bytes", host, x, sample.memory_used_bytes);
    for (const [name, network] of Object.entries(sample.network)) {
      add("Network, received", "bytes_per_second", `${host} ${name}`, x, network.received_bytes);
      add("Network, sent", "bytes_per_second", `${host} ${name}`, x, network.sent_bytes);
    }
    for (const [name, disk] of Object.entries(sample.disks)) {
      add("Disk reads", "bytes_per_second", `${host} ${name}`, x, disk.read_bytes);
      add("Disk writes", "bytes_per_second", `${host} ${name}`, x, disk.written_bytes);
      add("Disk operations a second", "number", `${host} ${name}`, x, disk.reads + disk.writes);
      add("Disk queue", "number", `${host} ${name}`, x, disk.queue);
      add("Disk busy", "part", `${host} ${name}`, x, disk.busy);
    }
  }
  return [...all].map(([name, { unit, lines }]) => ({
    name,
    unit,
    // Those that did something, the busiest first; a machine has many idle devices.
    series: [...lines]
      .map(([line, points]) => ({ name: line, points, color: 0, sum: points.reduce((sum, p) => sum + p[1], 0) }))
      .filter((line) => line.sum > 0)
      .sort((a, b) => b.sum - a.sum)
      .slice(0, 6)
      .map(({ name: line, points }, color) => ({ name: line, points, color })),
  })).filter((resource) => resource.series.length > 0);
}

/** Ticks whose names differ: two places of one name would say that the axis stands still. */
export function namedTicks(values: number[], name: (value: number) => string): { value: number; text: string }[] {
  const found: { value: number; text: string }[] = [];
  for (const value of values) {
    const text = name(value);
    if (text === "" || found.at(-1)?.text !== text) found.push({ value, text });
  }
  return found;
}

/**
 * Round values for an axis from `low` to `high`, about `wanted` of them. Reports have ticks of their own
 * (`crates/lab/src/plot/scale.rs`): theirs are drawn once, where no browser is; these at every zoom.
 */
export function ticks(low: number, high: number, wanted: number): number[] {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999) ?? 10 * power;
  const found: number[] = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step + 0);
  return found;
}

/** Round values of a time axis: seconds, minutes and hours come in sixties. */
export function timeTicks(low: number, high: number, wanted: number): number[] {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const raw = (high - low) / Math.max(1, wanted);
  if (raw < 1) return ticks(low, high, wanted);
  const step = steps.find((n) => n >= raw) ?? 86400 * Math.ceil(raw / 86400);
  const found: number[] = [];
  for (let n = Math.ceil(low / step); n * step <= high; n += 1) found.push(n * step + 0);
  return found;
}

/** 1, 2 and 5 of every decade, or the decades alone where these are many. */
export function logTicks(low: number, high: number, wanted: number): number[] {
  const found: number[] = [];
  const decades = Math.log10(high / low);
  const parts = decades * 3 <= wanted ? [1, 2, 5] : [1];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const part of parts) {
      const value = part * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found.length >= 2 ? found : ticks(low, high, wanted).filter((value) => value > 0);
}

/** The point of a line that is nearest to x, by halving: points are in rising order of x. */
export function nearest(points: Point[], x: number): Point | null {
  if (points.length === 0) return null;
  let low = 0;
  let high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle]![0] < x) low = middle;
    else high = middle;
  }
  const [a, b] = [points[low]!, points[high]!];
  const best = Math.abs(a[0] - x) <= Math.abs(b[0] - x) ? a : b;
  if (!Number.isNaN(best[1])) return best;
  const other = best === a ? b : a;
  return Number.isNaN(other[1]) ? null : other;
}
