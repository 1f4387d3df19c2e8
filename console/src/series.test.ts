import test from "node:test";
import assert from "node:assert/strict";
import type { Sample } from "./api";
import { clock, fineClock } from "./format";
import { colorsOf, latest, lineNames, logTicks, namedTicks, nearest, overTime, ticks, timeTicks } from "./series";

const operation = (name: string, ops: number) => ({
  name, kind: name, ops, bytes: ops * 10, errors: 1, mean_ns: 1, p50_ns: ops, p95_ns: 2, p99_ns: 3 * ops, max_ns: 4,
});
const sample = (at: number, work: string, ops: number, stage = "main"): Sample => ({
  stage, work, at, seconds: 2, phase: "counted", progress: at / 100, left: 100 - at, operations: [operation("read", ops)],
});

test("one work: lines are named by operation, and gaps break them", () => {
  const samples = [sample(2, "w", 10), sample(4, "w", 20), sample(30, "w", 30)];
  assert.deepEqual(lineNames(samples), ["read"]);
  const [line] = overTime(samples, 0, (o, s) => o.ops / s.seconds, ["read"]);
  assert.deepEqual(line!.points, [[2, 5], [4, 10], [17, NaN], [30, 15]]);
});

test("no interval is left out, and one without completions is zero", () => {
  const one = (at: number, seconds: number, ops: number): Sample => ({ ...sample(at, "w", ops), seconds });
  // One late sample, five times as long as the others, hides none of them.
  const samples = [one(1, 1, 10), one(2, 1, 20), one(7, 5, 50), one(8, 1, 30), { ...one(9, 1, 0), operations: [] }, one(10, 1, 40)];
  const [line] = overTime(samples, 0, (o, s) => o.ops / s.seconds, ["read"]);
  assert.deepEqual(line!.points.filter((point) => !Number.isNaN(point[1])), [[1, 10], [2, 20], [7, 10], [8, 30], [9, 0], [10, 40]]);
  // What is left of an interval at the end is part of the one before.
  const [rest] = overTime([...samples, one(10.1, 0.1, 26)], 0, (o, s) => Math.round(o.ops / s.seconds), ["read"]);
  assert.deepEqual(rest!.points.at(-1), [10.1, 60]);
});

test("works side by side: the work is part of the name, and now is their sum", () => {
  const samples = [sample(2, "a", 10), sample(2, "b", 20), sample(4, "a", 30), sample(4, "b", 40)];
  assert.deepEqual(lineNames(samples), ["a read", "b read"]);
  const now = latest(samples)!;
  assert.equal(now.rate, 35);
  assert.equal(now.bandwidth, 350);
  assert.equal(now.p99, 120);
  assert.equal(now.failures, 4);
  assert.equal(now.left, 96);
});

test("now is of the stage under way alone", () => {
  assert.equal(latest([sample(2, "a", 10, "one"), sample(4, "a", 30, "two")])!.rate, 15);
  assert.equal(latest([]), null);
});

test("axes have round values", () => {
  assert.deepEqual(ticks(0, 97, 5), [0, 20, 40, 60, 80]);
  assert.deepEqual(ticks(0, 1, 4), [0, 0.25, 0.5, 0.75, 1]);
  assert.deepEqual(timeTicks(0, 130, 5), [0, 30, 60, 90, 120]);
  assert.deepEqual(logTicks(1e6, 1e9, 9).length, 10);
  assert.deepEqual(logTicks(100, 1e9, 5), [100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9]);
  assert.ok(logTicks(3e6, 4e6, 4).length >= 2);
});

test("the nearest point", () => {
  assert.deepEqual(nearest([[0, 1], [10, 2], [20, NaN], [30, 3]], 12), [10, 2]);
  assert.deepEqual(nearest([[0, 1], [10, 2], [20, NaN], [30, 3]], 27), [30, 3]);
  assert.equal(nearest([], 1), null);
});

test("operations of one name are lines of their own by size class", () => {
  const classes = (at: number): Sample => ({ ...sample(at, "w", 0), operations: [{ ...operation("read", 2), size_class: "tiny" }, { ...operation("read", 4), size_class: "huge" }] });
  const samples = [classes(2), classes(4)];
  assert.deepEqual(lineNames(samples), ["read tiny", "read huge"]);
  const lines = overTime(samples, 0, (o) => o.ops, ["read tiny", "read huge"]);
  assert.deepEqual(lines.map((line) => line.points), [[[2, 2], [4, 2]], [[2, 4], [4, 4]]]);
});

test("no two ticks have one name", () => {
  const values = timeTicks(3, 4, 5);
  const names = (format: (value: number) => string) => namedTicks(values, format).map((tick) => tick.text);
  assert.ok(values.length > 3);
  assert.deepEqual(names(clock), ["0:03", "0:04"]);
  assert.deepEqual(names(fineClock), ["0:03.00", "0:03.20", "0:03.40", "0:03.60", "0:03.80", "0:04.00"]);
});

test("an operation has one colour, whatever else there is", () => {
  const alone = colorsOf(["write"]);
  const mixed = colorsOf(["read", "write", "read small", "read large"]);
  assert.equal(alone.get("write"), mixed.get("write"));
  assert.equal(new Set(mixed.values()).size, 4);
  // The lines of a stage chosen alone, and the order in which they came, change nothing.
  assert.equal(colorsOf(["write", "read"]).get("read"), mixed.get("read"));
  assert.equal(colorsOf(["main read", "main write"]).get("main write"), mixed.get("write"));
  const many = Array.from({ length: 20 }, (_, n) => `read ${n}`);
  assert.ok([...colorsOf(many).values()].every((color) => color >= 0 && color < 8));
});
