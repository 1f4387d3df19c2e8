import test from "node:test";
import assert from "node:assert/strict";
import type { Entry } from "./api";
import { repetitionsOf } from "./compare";

const run = (id: string, name: string, plan_digest: string, target = "swift http://a"): Entry => ({
  id, name, file_name: "w.xml", target, state: "done", submitted: 1, started: 1, ended: 2, message: null, headline: null,
  run: { plan_digest, target } as Entry["run"],
});

test("repetitions have the same name, plan and target", () => {
  const runs = [run("a1", "mix", "8 workers"), run("a2", "mix", "8 workers"), run("b", "mix", "16 workers"), run("c", "mix", "8 workers", "swift http://c"), run("old", "mix", ""), run("older", "mix", "")];
  assert.deepEqual(repetitionsOf("a1", "b", runs), ["a1", "a2"]);
  assert.deepEqual(repetitionsOf("b", "a1", runs), ["b"]);
  // Two of one sample are no two sides.
  assert.deepEqual(repetitionsOf("a1", "a2", runs), ["a1"]);
  assert.deepEqual(repetitionsOf("old", "b", runs), ["old"]);
});
