// What recon tells of background work, in words and units. Its keys are Swift's; numbers say by
// their key whether they are moments, spans of time, bytes or counts.

import { bytes, count, duration, number, time } from "./format";

export const NOTHING = "nothing yet";

/** Seconds since 1970 of this century: no other figure of recon's is as large and a time by name. */
const isMoment = (key: string, value: number) => value > 1e9 && value < 5e9 && /(^|_)(last|start|since|time|completed)(_|$)/.test(key);

/** `what`: recon's path, such as `replication/object`. */
export function told(what: string, value: unknown, key = ""): string {
  if (value === null || value === undefined) return NOTHING;
  if (Array.isArray(value)) return value.length === 0 ? "none" : value.map((one) => told(what, one, key)).join("; ");
  if (typeof value === "object") {
    const parts = Object.entries(value).map(([name, inner]): [string, string] => [name, told(what, inner, name)]).filter(([, words]) => words !== NOTHING);
    return parts.length === 0 ? NOTHING : parts.map(([name, words]) => `${name.replace(/_/g, " ")}: ${words}`).join(", ");
  }
  return typeof value === "number" ? figure(what, key, value) : String(value);
}

function figure(what: string, key: string, value: number): string {
  if (key.includes("bytes")) return bytes(value);
  if (isMoment(key, value)) return time(value * 1000);
  // The object replicator counts minutes, all others seconds.
  if (what === "replication/object" && /replication_time$/.test(key)) return duration(value * 60);
  if (/(time|sweep|pass_completed|expiration_pass|cycle_completed)$/.test(key)) return duration(value);
  return Number.isInteger(value) ? count(value) : number(value);
}
