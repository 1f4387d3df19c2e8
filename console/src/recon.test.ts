import test from "node:test";
import assert from "node:assert/strict";
import { time } from "./format";
import { NOTHING, told } from "./recon";

test("recon's numbers are told in words and units", () => {
  const moment = 1_795_486_622;
  assert.equal(told("replication/object", { replication_last: moment + 0.25 }), `replication last: ${time(moment * 1000 + 250)}`);
  assert.equal(told("replication/object", { replication_time: 1.5 }), "replication time: 1 min 30 s");
  assert.equal(told("replication/container", { replication_time: 90 }), "replication time: 1 min 30 s");
  assert.equal(told("auditor/object", { object_auditor_stats_ALL: { start_time: moment, bytes_processed: 64_000, passes: 1234, audit_time: 12 } }),
    `object auditor stats ALL: start time: ${time(moment * 1000)}, bytes processed: 64 kB, passes: 1,234, audit time: 12 s`);
  assert.equal(told("updater/object", { object_updater_sweep: 75 }), "object updater sweep: 1 min 15 s");
  // A count stays a count, however large.
  assert.equal(told("async", { async_pending: moment }), "async pending: 1,795,486,622");
  assert.equal(told("replication/account", { replication_last: null }), NOTHING);
});
