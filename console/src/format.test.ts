import test from "node:test";
import assert from "node:assert/strict";
import { bytes, change, clock, duration, latency, latencyOf, number, percent, shownName } from "./format";

test("figures", () => {
  assert.equal(number(0), "0");
  assert.equal(number(1234.5), "1,235");
  assert.equal(number(12.34), "12.3");
  assert.equal(number(NaN), "–");
  assert.equal(bytes(0), "0 B");
  assert.equal(bytes(64_000), "64 kB");
  assert.equal(bytes(999_900), "1 MB");
  assert.equal(latency(850_000), "850 µs");
  assert.equal(latencyOf(0, 0), "–");
  assert.equal(latency(12_340_000), "12.3 ms");
  assert.equal(latency(2_000_000_000), "2 s");
  assert.equal(duration(0.5), "0.5 s");
  assert.equal(duration(200), "3 min 20 s");
  assert.equal(duration(59.7), "1 min");
  assert.equal(duration(7500), "2 h 5 min");
  assert.equal(clock(45), "0:45");
  assert.equal(clock(3725), "1:02:05");
  assert.equal(percent(0.5), "50 %");
  assert.equal(percent(0.99999), "99.999 %");
  assert.equal(change(100, 110), "+10 %");
  assert.equal(change(100, 98.5), "−1.5 %");
  assert.equal(change(0, 1), "–");
});

test("names cannot turn what stands beside them", () => {
  assert.equal(shownName("photo\u202egnp.exe"), "photo⟨U+202E⟩gnp.exe");
  assert.equal(shownName("a\u200b\nb"), "a⟨U+200B⟩⟨U+000A⟩b");
  assert.equal(shownName("Grüße שלום 長.txt"), "Grüße שלום 長.txt");
});
