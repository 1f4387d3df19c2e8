// What the console's server answers, and how it is asked. Times of notes are milliseconds since
// 1970, of run records seconds; latencies are nanoseconds.

export type State = "waiting" | "running" | "done" | "failed" | "cancelled" | "interrupted";

export interface Session {
  signed_in: boolean;
  version?: string;
  runs?: string;
  store?: StoreAbout | null;
}

export interface StoreAbout {
  endpoint: string;
  user: StoreUser | null;
}

export interface StoreUser {
  name: string;
  account: string;
}

export interface Headline {
  stages: number;
  ops: number;
  bytes: number;
  failed: number;
  ops_per_second: number;
  bytes_per_second: number;
  p50_ns: number;
  p99_ns: number;
}

export interface RunMeta {
  id: string;
  name: string;
  description: string;
  /** The workload's file and its scale; empty in older runs, and where none was chosen. */
  file?: string;
  scale?: string;
  tags?: string[];
  format: string;
  state: "running" | "completed" | "failed" | "cancelled";
  message: string;
  started: number;
  ended: number | null;
  seed: number;
  /** Runs that share it measured the same thing; empty in older ones. */
  plan_digest: string;
  /** Conditions that hold, in sentences. */
  broken: string[];
  target: string;
  server: string;
  command: string[];
  lab_version: string;
  drivers: { name: string; host: { name: string; cpu: string; cores: number; kernel: string }; lost: unknown }[];
  ceiling: { ops_per_second: number; threads: number; seconds: number } | null;
  notes: string[];
}

export interface Entry {
  id: string;
  name: string;
  file_name: string;
  target: string;
  state: State;
  submitted: number;
  started: number | null;
  ended: number | null;
  message: string | null;
  run: RunMeta | null;
  headline: Headline | null;
}

export interface OperationSample {
  name: string;
  /** As the workload names it; several operations of a mix may have the same name. */
  size_class?: string;
  kind: string;
  ops: number;
  bytes: number;
  errors: number;
  mean_ns: number;
  p50_ns: number;
  p95_ns: number;
  p99_ns: number;
  max_ns: number;
}

export interface Sample {
  stage: string;
  work: string;
  at: number;
  seconds: number;
  phase: "rampup" | "counted" | "rampdown";
  progress: number;
  left: number | null;
  operations: OperationSample[];
}

export interface ResourceSample {
  host: string;
  stage: string;
  at: number;
  seconds: number;
  cpu: { user: number; system: number; iowait: number; steal: number };
  memory_used_bytes: number;
  network: Record<string, { received_bytes: number; sent_bytes: number }>;
  disks: Record<string, { read_bytes: number; written_bytes: number; reads: number; writes: number; queue: number; busy: number }>;
}

export interface Latency {
  mean_ns: number;
  min_ns: number;
  p50_ns: number;
  p90_ns: number;
  p95_ns: number;
  p99_ns: number;
  p999_ns: number;
  max_ns: number;
  curve?: [number, number][];
}

export interface OperationFigures {
  work: string;
  name: string;
  kind: string;
  size_class: string | null;
  ops: number;
  bytes: number;
  failed: number;
  errors: Record<string, number>;
  ops_per_second: number;
  bytes_per_second: number;
  last_byte: Latency;
  first_byte: Latency;
  service?: Latency;
  open_loop?: OpenLoop;
}

/** Rates a second; delays from due time to actual start. */
export interface OpenLoop {
  offered: number;
  achieved: number;
  late: number;
  delay_p50_ns: number;
  delay_p99_ns: number;
  delay_max_ns: number;
  overloaded: boolean;
}

export interface WorstRequest {
  at: number;
  driver: string;
  worker: number;
  container: string;
  object: string;
  bytes: number;
  first_byte_ns: number;
  last_byte_ns: number;
  transaction: string;
  error: string | null;
}

export interface StageFigures {
  number: number;
  name: string;
  state: string;
  message: string;
  started: number;
  ended: number;
  swept: Record<string, string>;
  main: boolean;
  workers: number;
  ops_per_second: number;
  bytes_per_second: number;
  failed: number;
  operations: OperationFigures[];
  worst: WorstRequest[];
}

export interface Plan {
  stages: { name: string; works: { name: string; kind: string; workers: number }[] }[];
}

export interface FileEntry {
  path: string;
  size: number;
}

export type Target =
  | { kind: "file" }
  | { kind: "store" }
  | { kind: "url"; url: string; user: string; key: string };

export interface Submission {
  name: string;
  file_name: string;
  text: string;
  target: Target;
  seed?: number;
  time_scale?: number;
}

export interface Device {
  name: string;
  region: number;
  zone: number;
  address: string;
  rings: Record<string, { weight: number; partitions: number }>;
  space: { file_system: number; total: number; used: number; free: number } | null;
  missing: boolean;
}

export interface StoreState {
  endpoint: string;
  healthy: boolean;
  state: {
    policies: { index: number; name: string; default: boolean }[];
    rings: { name: string; partitions: number; replicas: number; devices: number; version: number | null }[];
    devices: Device[];
  };
  recon: Record<string, Record<string, unknown>>;
}

export interface StoreSample {
  at: number;
  rates: Record<string, number>;
  failures: number;
  in_flight: number;
  connections: number;
  p50: number | null;
  p95: number | null;
  p99: number | null;
}

/** An answer that is no success. `field`: which part of a form it is about. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly field: string | null,
  ) {
    super(message);
  }
}

/** Told when the session has ended. */
let onSignedOut = () => {};
export function whenSignedOut(call: () => void) {
  onSignedOut = call;
}

async function refusal(response: Response): Promise<Refused> {
  let message = `${response.status} ${response.statusText}`;
  let field: string | null = null;
  if (response.headers.get("content-type")?.startsWith("application/json")) {
    const told = (await response.json().catch(() => null)) as { error?: string; field?: string } | null;
    message = told?.error ?? message;
    field = told?.field ?? null;
  }
  if (response.status === 401 && field === "session") onSignedOut();
  return new Refused(response.status, message, field);
}

export async function call(method: string, path: string, body?: unknown): Promise<Response> {
  const headers: Record<string, string> = { "X-Cairn-Console": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? null : JSON.stringify(body) });
  } catch {
    throw new Refused(0, "The console does not answer. Is it still running?", null);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

export async function get<T>(path: string): Promise<T> {
  return (await call("GET", path)).json() as Promise<T>;
}

export const runPath = (id: string, rest = "") => `/api/runs/${encodeURIComponent(id)}${rest}`;

export const filePath = (id: string, path: string) =>
  runPath(id, "/files/" + path.split("/").map(encodeURIComponent).join("/"));

/** A request of the store's Swift API, made in the signed-in user's name. */
export async function swift(method: string, path: string, query: Record<string, string> = {}): Promise<Response> {
  const text = new URLSearchParams(query).toString();
  let response: Response;
  try {
    response = await fetch("/swift" + path + (text ? "?" + text : ""), { method, headers: { "X-Cairn-Console": "1" } });
  } catch {
    throw new Refused(0, "The console does not answer. Is it still running?", null);
  }
  if (!response.ok) {
    const refused = await refusal(response);
    // The store's own refusal of a token: it has run out, or the store was started anew.
    throw refused.status === 401 && refused.field === null
      ? new Refused(401, "The store's token has ended: sign in to the store again.", "store")
      : refused;
  }
  return response;
}

/** Uploads a file as an object; `progress` hears the part that is sent. */
export function upload(path: string, file: File, progress: (part: number) => void, cancel: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", "/swift" + path);
    request.setRequestHeader("X-Cairn-Console", "1");
    if (file.type) request.setRequestHeader("Content-Type", file.type);
    request.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded / event.total);
    request.onload = () =>
      request.status < 300
        ? resolve()
        : reject(new Refused(request.status, `${file.name}: the store answered ${request.status} ${request.statusText}`, null));
    request.onerror = () => reject(new Refused(0, `${file.name}: the connection broke`, null));
    request.onabort = () => reject(new Refused(0, `${file.name}: cancelled`, null));
    cancel.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}
