import test from "node:test";
import assert from "node:assert/strict";
import { EMPTY, problems, sizeSelector, workload } from "./form";

test("sizes", () => {
  assert.equal(sizeSelector("64KB"), "c(64)KB");
  assert.equal(sizeSelector("4 kb - 1 MB"), "u(4,1000)KB");
  for (const bad of ["", "64", "KB", "1MB-4KB", "1KB-2KB-3KB", "1XB"]) assert.equal(sizeSelector(bad), null, bad);
});

test("a form's problems name the field", () => {
  assert.deepEqual(problems(EMPTY), []);
  assert.deepEqual(problems({ ...EMPTY, name: "ü".repeat(101) }).map((p) => p.field), ["name"]);
  const fields = problems({ ...EMPTY, name: " ", size: "x", read: 50, workers: "0", runtime: 0.5 }).map((p) => p.field);
  assert.deepEqual(fields, ["name", "size", "read", "workers", "runtime"]);
});

test("one stage per number of workers, names escaped", () => {
  const text = workload({ ...EMPTY, name: `a "b" & <c>`, workers: "1, 8", remove: 10, read: 70 });
  assert.ok(text.includes(`name="a &quot;b&quot; &amp; &lt;c&gt;"`));
  assert.ok(text.includes("cprefix=a-b-c-"));
  assert.deepEqual(text.match(/workstage name="[^"]*"/g), ["init", "prepare", "main-1", "main-8", "cleanup", "dispose"].map((n) => `workstage name="${n}"`));
  assert.ok(text.includes(`type="delete" ratio="10"`));
});
