// What the store beside this console is made of, and what it does.

import { get, type Device, type StoreSample, type StoreState } from "./api";
import { Chart } from "./chart";
import { bytes, clock, count, latency, number, ofDay, percent, plural, rate } from "./format";
import { ErrorBox, Progress, TableFrame, Tile, useLoad } from "./parts";
import { NOTHING, told } from "./recon";
import type { Series } from "./series";

export function StorePage() {
  const { data, error } = useLoad(() => get<StoreState>("/api/store"), [], 10);
  const samples = useLoad(() => get<{ every: number; samples: StoreSample[] }>("/api/store/samples"), [], 2);
  const last = samples.data?.samples.at(-1);
  const total = last ? Object.values(last.rates).reduce((sum, value) => sum + value, 0) : NaN;
  const space = data ? capacity(data.state.devices) : null;
  const missing = data?.state.devices.filter((device) => device.missing) ?? [];
  return (
    <>
      <div class="page-head">
        <h1>Store</h1>
        {data && <span class={`badge ${data.healthy && missing.length === 0 ? "done" : "failed"}`}>{data.healthy ? (missing.length ? "degraded" : "healthy") : "not answering"}</span>}
        <span class="spacer" />
        {data && <code>{data.endpoint}</code>}
      </div>
      <ErrorBox error={error ?? samples.error} />
      {missing.length > 0 && <p class="notice bad" role="alert">{plural(missing.length, "device")} missing: {missing.map((device) => device.name).join(", ")}. Its copies are on other devices; bring it back, or take it out of the rings.</p>}
      <dl class="tiles">
        <Tile label="Requests" value={rate(total)} hint={last ? `${count(last.in_flight)} under way, ${plural(last.connections, "connection")}` : undefined} />
        <Tile label="Answer begins within" value={last?.p50 != null ? `${latency(last.p50 * 1e9)}` : "–"} hint={last?.p99 != null ? `p99 about ${latency(last.p99 * 1e9)}` : "p50, no request just now"} />
        <Tile label="Failures (5xx)" value={last ? rate(last.failures) : "–"} tone={last && last.failures > 0 ? "bad" : undefined} />
        <Tile label="Devices" value={data ? String(data.state.devices.length) : "–"} hint={missing.length ? `${missing.length} missing` : data ? "all there" : undefined} tone={missing.length ? "bad" : undefined} />
        <Tile label="Space" value={space ? bytes(space.free) : "–"} hint={space ? `free of ${bytes(space.total)}` : undefined} tone={space && space.free < space.total * 0.1 ? "bad" : undefined} />
      </dl>
      <Traffic samples={samples.data?.samples ?? []} />
      {data && <Devices devices={data.state.devices} rings={data.state.rings.map((ring) => ring.name)} />}
      {data && <Rings data={data} />}
      {data && <Recon recon={data.recon} />}
    </>
  );
}

/** Devices of one file system share its space: it counts once. */
export function capacity(devices: Device[]): { total: number; free: number } | null {
  const seen = new Map<number, { total: number; free: number }>();
  for (const { space } of devices) if (space) seen.set(space.file_system, space);
  if (seen.size === 0) return null;
  return [...seen.values()].reduce((sum, one) => ({ total: sum.total + one.total, free: sum.free + one.free }), { total: 0, free: 0 });
}

function Traffic({ samples }: { samples: StoreSample[] }) {
  const end = samples.at(-1)?.at ?? 0;
  const x = { kind: "time" as const, format: (value: number) => (Math.abs(value) < 0.5 ? "now" : clock(value)), name: (value: number) => ofDay(end + value * 1000), label: "at" };
  const at = (sample: StoreSample) => (sample.at - end) / 1000;
  const methods = [...new Set(samples.flatMap((sample) => Object.keys(sample.rates)))].sort();
  const rates = methods.map((name, color): Series => ({ name, color, points: samples.map((s): [number, number] => [at(s), s.rates[name] ?? 0]) }));
  const times = (["p50", "p95", "p99"] as const).map((name, color): Series => ({ name, color, points: samples.map((s): [number, number] => [at(s), s[name] ?? NaN]) }));
  const span: [number, number] = [samples[0] ? at(samples[0]) : -60, 0];
  return (
    <div class="charts">
      <Chart title="Requests" live span={span} note="by method" series={rates} x={x} y={{ kind: "linear", format: rate, label: "requests a second" }} />
      <Chart title="Time until the answer begins" live span={span} series={times} x={x} y={{ kind: "linear", format: (value) => latency(value * 1e9), label: "seconds" }} />
    </div>
  );
}

function Devices({ devices, rings }: { devices: Device[]; rings: string[] }) {
  return (
    <section aria-labelledby="devices-title">
      <h2 id="devices-title">Devices</h2>
      <TableFrame label="Devices">
        <table>
          <thead><tr><th scope="col">Device</th><th scope="col">Region</th><th scope="col">Zone</th><th scope="col">State</th><th scope="col">Space used</th>{rings.map((ring) => <th key={ring} scope="col" class="n">{ring} partitions</th>)}</tr></thead>
          <tbody>
            {devices.map((device) => (
              <tr key={`${device.name} ${device.address}`}>
                <td class="first"><b>{device.name}</b></td><td>{device.region}</td><td>{device.zone}</td>
                <td>{device.missing ? <span class="badge failed">missing</span> : <span class="badge done">there</span>}</td>
                <td>{device.space ? <div class="space"><Progress part={device.space.used / device.space.total} label={`Space used on ${device.name}`} /><span class="muted small">{percent(device.space.used / device.space.total)} of {bytes(device.space.total)}</span></div> : "–"}</td>
                {rings.map((ring) => <td key={ring} class="n" title={device.rings[ring] ? `weight ${device.rings[ring].weight}, ${device.address}` : undefined}>{device.rings[ring] ? count(device.rings[ring].partitions) : "–"}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </TableFrame>
      {new Set(devices.map((device) => device.space?.file_system)).size === 1 && devices.length > 1 && <p class="muted small">All devices are folders of one file system: they share its space, and its failure.</p>}
    </section>
  );
}

function Rings({ data }: { data: StoreState }) {
  return (
    <section aria-labelledby="rings-title">
      <h2 id="rings-title">Rings and policies</h2>
      <TableFrame label="Rings">
        <table>
          <thead><tr><th scope="col">Ring</th><th scope="col">Policy</th><th scope="col" class="n">Partitions</th><th scope="col" class="n">Replicas</th><th scope="col" class="n">Devices</th><th scope="col" class="n">Version</th></tr></thead>
          <tbody>
            {data.state.rings.map((ring) => {
              const index = ring.name === "object" ? 0 : /^object-(\d+)$/.exec(ring.name)?.[1];
              const policy = index === undefined ? undefined : data.state.policies.find((p) => p.index === Number(index));
              return (
                <tr key={ring.name}>
                  <td class="first"><b>{ring.name}</b></td><td>{policy ? `${policy.name}${policy.default ? " (default)" : ""}` : ""}</td>
                  <td class="n">{count(ring.partitions)}</td><td class="n">{number(ring.replicas)}</td><td class="n">{ring.devices}</td><td class="n">{ring.version ?? "–"}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </TableFrame>
    </section>
  );
}

/** What recon tells, in plain words where the words are known. */
function Recon({ recon }: { recon: StoreState["recon"] }) {
  const rows: [string, string, string][] = [];
  for (const [server, answers] of Object.entries(recon)) {
    for (const [what, value] of Object.entries(answers)) {
      const words = what in WORDS ? told(what, value) : NOTHING;
      if (words !== NOTHING) rows.push([server, what, words]);
    }
  }
  if (rows.length === 0) return null;
  return (
    <section aria-labelledby="recon-title">
      <h2 id="recon-title">Background work</h2>
      <TableFrame label="What recon tells">
        <table>
          <thead><tr><th scope="col">Server</th><th scope="col">What</th><th scope="col">Says</th></tr></thead>
          <tbody>{rows.map(([server, what, says]) => <tr key={`${server} ${what}`}><td class="first">{server}</td><td>{WORDS[what] ?? what}</td><td class="wrap">{says}</td></tr>)}</tbody>
        </table>
      </TableFrame>
    </section>
  );
}

const WORDS: Record<string, string> = {
  async: "container updates that wait",
  quarantined: "quarantined",
  "updater/object": "object updater",
  "updater/container": "container updater",
  "replication/object": "replication",
  "replication/account": "replication",
  "replication/container": "replication",
  "auditor/account": "auditor",
  "auditor/container": "auditor",
  "auditor/object": "auditor",
  "expirer/object": "expirer",
};
