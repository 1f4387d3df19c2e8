// One run: how it goes on, what came of it, its files.

import { useMemo, useState } from "preact/hooks";
import { call, filePath, get, runPath, type Entry, type FileEntry, type Plan, type StageFigures } from "./api";
import { Chart } from "./chart";
import { bandwidth, bytes, clock, count, duration, latency, latencyOf, number, ofDay, percent, plural, rate, time } from "./format";
import { useCourse, type Course } from "./live";
import { Badge, Confirm, ErrorBox, Marks, Progress, Rename, TableFrame, Tile, go, useClock, useLoad } from "./parts";
import { colorsOf, figureName, latest, lineNames, overTime, resources, type Series } from "./series";

export const TIME_AXIS = { kind: "time" as const, format: clock, label: "time" };

export function RunPage({ id }: { id: string }) {
  const course = useCourse(id);
  const first = useLoad(() => get<{ entry: Entry; ahead: number | null }>(runPath(id)), [id, course.entry?.state]);
  const plan = useLoad(() => get<Plan>(filePath(id, "plan.json")), [id, course.entry?.run?.state]);
  const [failed, setFailed] = useState<unknown>(null);
  const [removing, setRemoving] = useState(false);
  const [renaming, setRenaming] = useState(false);
  // A run that is over is told no more: what was changed since comes from its record.
  const told = course.entry ?? first.data?.entry ?? null;
  const active = told?.state === "running" || told?.state === "waiting";
  const entry = active ? told : (first.data?.entry ?? told);
  if (!entry) return first.error ? <><h1>Run</h1><ErrorBox error={first.error} /><p><a href="#/runs">Back to all runs</a></p></> : <p class="muted">Loading…</p>;
  const lines = [...lineNames(course.samples), ...course.stages.flatMap((stage) => (stage.main ? stage.operations.filter((o) => o.size_class === null).map((o) => figureName(course.stages, o)) : []))];
  const colors = colorsOf([...new Set(lines)]);
  const cancel = () => call("POST", runPath(id, "/cancel")).catch(setFailed);
  const remove = () => call("DELETE", runPath(id)).then(() => go("/runs"), setFailed);
  return (
    <>
      <p class="crumbs"><a href="#/runs">Runs</a> / <span class="muted">{id}</span></p>
      <div class="page-head">
        <h1>{entry.name}</h1>
        <Badge state={entry.state} broken={entry.run?.broken} />
        <span class="spacer" />
        {active && <button type="button" class="danger" onClick={cancel}>Cancel the run</button>}
        {entry.file_name && <a class="button" href={`#/new?again=${encodeURIComponent(id)}`}>Run again</a>}
        {!active && entry.headline && <a class="button" href={`#/compare?a=${encodeURIComponent(id)}`}>Compare</a>}
        {!active && <button type="button" onClick={() => setRenaming(true)}>Name and tags</button>}
        {!active && <button type="button" onClick={() => setRemoving(true)}>Remove</button>}
      </div>
      <p class="marks"><Marks run={entry.run} file_name={entry.file_name} /></p>
      <p class="muted">
        {entry.run?.target || entry.target || "as the workload says"} · submitted {time(entry.submitted)}
        {entry.started && entry.ended ? ` · took ${duration((entry.ended - entry.started) / 1000)}` : ""}
        {entry.run?.seed !== undefined ? ` · seed ${entry.run.seed}` : ""}
      </p>
      <ErrorBox error={failed} />
      {course.lost && <p class="notice">The connection to the console is broken; it is tried again.</p>}
      {entry.message && <p class={`notice ${entry.state === "failed" ? "bad" : ""}`} role={entry.state === "failed" ? "alert" : undefined}><span class="pre">{entry.message}</span></p>}
      {entry.run?.broken?.map((told) => <p key={told} class="notice bad" role="alert">{told}</p>)}
      {entry.run?.notes.map((note) => <p key={note} class="notice info small">{note}</p>)}
      {entry.state === "waiting" && <p class="notice">{first.data?.ahead ? `${plural(first.data.ahead, "run")} before this one.` : "It begins as soon as the run under way is over."}</p>}
      {entry.state === "running" && <NowTiles course={course} entry={entry} plan={plan.data} />}
      {!active && entry.headline && entry.headline.ops > 0 && <Headlines entry={entry} />}
      {plan.data && <StageStrip plan={plan.data} stages={course.stages} current={entry.state === "running" ? course.samples.at(-1)?.stage : undefined} />}
      {(course.samples.length > 0 || entry.state === "running") && <TimeCharts course={course} entry={entry} colors={colors} />}
      {course.problem && <ErrorBox error={course.problem} />}
      {course.stages.length > 0 && <StageResults stages={course.stages} colors={colors} />}
      <Resources course={course} start={entry.run?.started ?? 0} />
      {course.log.length > 0 && (
        <details open={entry.state === "failed" || (active && course.samples.length === 0)}>
          <summary>What the lab's process said</summary>
          <pre class="log" tabIndex={0} aria-label="Log">{course.log.join("\n")}</pre>
        </details>
      )}
      <Facts entry={entry} />
      <Files id={id} state={entry.state} />
      {renaming && <Rename entry={entry} onNo={() => setRenaming(false)} onDone={() => { setRenaming(false); first.again(); }} />}
      {removing && <Confirm title={`Remove “${entry.name}”?`} text="Its folder and all its results are deleted from disk. This cannot be undone." action="Remove it" onNo={() => setRemoving(false)} onYes={remove} />}
    </>
  );
}

function NowTiles({ course, entry, plan }: { course: Course; entry: Entry; plan: Plan | null }) {
  const now = latest(course.samples);
  const clockNow = useClock(true);
  const began = entry.run?.started ?? (entry.started ?? 0) / 1000;
  const all = plan?.stages.length ?? 0;
  const stage = now ? (plan?.stages.findIndex((s) => s.name === now.stage) ?? -1) + 1 : 0;
  const what = now ? `${now.stage}${now.phase === "counted" ? "" : now.phase === "rampup" ? " (ramp-up)" : " (ramp-down)"}` : "starting";
  return (
    <section aria-label="Now">
      <div class="stage-line">
        <b>{what}</b>
        {all > 0 && stage > 0 && <span class="muted">stage {stage} of {all}</span>}
        <span class="spacer" />
        <span class="muted">{duration(Math.round(Math.max(0, clockNow - began)))} so far{now?.left != null ? ` · ${duration(Math.ceil(now.left))} left in this stage` : ""}</span>
      </div>
      <Progress part={now?.progress ?? 0} label={`Progress of ${what}`} />
      <dl class="tiles">
        <Tile label="Operations" value={now ? rate(now.rate) : "–"} />
        <Tile label="Bandwidth" value={now ? bandwidth(now.bandwidth) : "–"} />
        <Tile label="p50" value={now ? latencyOf(now.rate, now.p50) : "–"} hint="slowest operation" />
        <Tile label="p99" value={now ? latencyOf(now.rate, now.p99) : "–"} hint="slowest operation" />
        <Tile label="Failed so far" value={now ? count(now.failures) : "–"} tone={now && now.failures > 0 ? "bad" : undefined} />
      </dl>
    </section>
  );
}

function Headlines({ entry }: { entry: Entry }) {
  const head = entry.headline!;
  const best = head.stages > 1 ? `the best of ${head.stages} stages` : undefined;
  const total = head.ops + head.failed;
  return (
    <dl class="tiles">
      <Tile label="Operations" value={rate(head.ops_per_second)} hint={best ?? `${count(head.ops)} in all`} />
      <Tile label="Bandwidth" value={bandwidth(head.bytes_per_second)} hint={best ?? `${bytes(head.bytes)} in all`} />
      <Tile label="p50" value={latencyOf(head.ops, head.p50_ns)} hint={best} />
      <Tile label="p99" value={latencyOf(head.ops, head.p99_ns)} hint={best} />
      <Tile label="Failed" value={count(head.failed)} hint={head.failed && total ? `${percent(head.failed / total)} of all` : `of ${count(total)}`} tone={head.failed ? "bad" : undefined} />
    </dl>
  );
}

function StageStrip({ plan, stages, current }: { plan: Plan; stages: StageFigures[]; current: string | undefined }) {
  const done = new Map(stages.map((stage) => [stage.name, stage]));
  if (plan.stages.length < 2 || plan.stages.length > 60) return null;
  return (
    <ol class="strip" aria-label="Stages">
      {plan.stages.map((stage) => {
        const result = done.get(stage.name);
        const state = result ? result.state : stage.name === current ? "running" : "pending";
        return <li key={stage.name} class={state} aria-current={state === "running" ? "step" : undefined}>{stage.name}<span class="visually-hidden"> {state}</span></li>;
      })}
    </ol>
  );
}

const PERCENTILES = { p50_ns: "p50", p95_ns: "p95", p99_ns: "p99", max_ns: "slowest", mean_ns: "mean" } as const;

function TimeCharts({ course, entry, colors }: { course: Course; entry: Entry; colors: Map<string, number> }) {
  const [stage, setStage] = useState("");
  const [percentile, setPercentile] = useState<keyof typeof PERCENTILES>("p99_ns");
  const stages = useMemo(() => [...new Set(course.samples.map((sample) => sample.stage))], [course.samples]);
  const samples = useMemo(() => (stage ? course.samples.filter((sample) => sample.stage === stage) : course.samples), [course.samples, stage]);
  const start = stage ? (samples[0] ? samples[0].at - samples[0].seconds : 0) : entry.run?.started || (course.samples[0]?.at ?? 0);
  const names = useMemo(() => lineNames(samples), [samples]);
  const lines = (pick: Parameters<typeof overTime>[2]) => overTime(samples, start, pick, names, colors);
  const live = entry.state === "running";
  const failures = samples.some((sample) => sample.operations.some((operation) => operation.errors > 0));
  const note = live ? "live" : undefined;
  return (
    <section aria-labelledby="time-title">
      <div class="page-head">
        <h2 id="time-title">Over time</h2>
        <span class="spacer" />
        {stages.length > 1 && (
          <label>Stage <select value={stage} onChange={(event) => setStage(event.currentTarget.value)}>
            <option value="">all</option>
            {stages.map((name) => <option key={name} value={name}>{name}</option>)}
          </select></label>
        )}
        <label>Response time <select value={percentile} onChange={(event) => setPercentile(event.currentTarget.value as keyof typeof PERCENTILES)}>
          {Object.entries(PERCENTILES).map(([key, name]) => <option key={key} value={key}>{name}</option>)}
        </select></label>
      </div>
      <div class="charts">
        <Chart title="Operations" note={note} live={live} series={lines((o, s) => o.ops / (s.seconds || 1))} x={TIME_AXIS} y={{ kind: "linear", format: rate, label: "operations a second" }} />
        <Chart title={`Response time, ${PERCENTILES[percentile]}`} note={note} live={live} series={lines((o) => (o.ops ? o[percentile] : NaN))} x={TIME_AXIS} y={{ kind: "linear", format: latency, label: "response time" }} />
        <Chart title="Bandwidth" note={note} live={live} series={lines((o, s) => o.bytes / (s.seconds || 1))} x={TIME_AXIS} y={{ kind: "linear", format: bandwidth, label: "bytes a second" }} />
        {failures && <Chart title="Failures" note={note} series={lines((o, s) => o.errors / (s.seconds || 1))} x={TIME_AXIS} y={{ kind: "linear", format: rate, label: "failures a second" }} />}
      </div>
    </section>
  );
}

function StageResults({ stages, colors }: { stages: StageFigures[]; colors: Map<string, number> }) {
  const measured = stages.filter((stage) => stage.main);
  const [chosen, setChosen] = useState<string>("");
  const [parts, setParts] = useState(false);
  const [special, setSpecial] = useState(false);
  const shown = special || measured.length === 0 ? stages : measured;
  const best = measured.reduce<StageFigures | null>((top, stage) => (!top || stage.ops_per_second > top.ops_per_second ? stage : top), null);
  const stage = measured.find((s) => s.name === chosen) ?? best;
  const classes = shown.some((s) => s.operations.some((o) => o.size_class !== null));
  return (
    <section aria-labelledby="results-title">
      <div class="page-head">
        <h2 id="results-title">Results</h2>
        <span class="spacer" />
        {classes && <label class="check"><input type="checkbox" checked={parts} onChange={(event) => setParts(event.currentTarget.checked)} /> by size</label>}
        {measured.length > 0 && measured.length < stages.length && <label class="check"><input type="checkbox" checked={special} onChange={(event) => setSpecial(event.currentTarget.checked)} /> preparing stages too</label>}
      </div>
      <div class="charts">
        {measured.length > 1 && <Overview stages={measured} best={best} />}
        {stage && <Distribution stage={stage} stages={measured} all={stages} colors={colors} choose={setChosen} />}
      </div>
      <TableFrame label="Results by stage and operation">
        <table>
          <thead><tr>
            <th scope="col">Stage</th><th scope="col">Operation</th><th scope="col" class="n">Workers</th><th scope="col" class="n">Operations</th><th scope="col" class="n">Rate</th><th scope="col" class="n">Bandwidth</th><th scope="col" class="n">Failed</th>
            <th scope="col" class="n">mean</th><th scope="col" class="n">p50</th><th scope="col" class="n">p95</th><th scope="col" class="n">p99</th><th scope="col" class="n">p99.9</th><th scope="col" class="n">slowest</th><th scope="col" class="n" title="Median time to the first byte of the answer">first byte</th>
          </tr></thead>
          <tbody>
            {shown.flatMap((s) => s.operations.filter((o) => parts || o.size_class === null).map((o, n) => (
              <tr key={`${s.name} ${o.work} ${o.name} ${o.size_class}`} class={o.size_class === null ? "" : "part"}>
                <td class="first">{n === 0 ? s.name : ""}{n === 0 && s.state !== "completed" ? <span class="bad-text"> {s.state}</span> : ""}</td>
                <td>{o.size_class === null ? o.name : <span class="muted">{o.size_class}</span>}</td>
                <td class="n">{n === 0 ? s.workers : ""}</td>
                <td class="n">{count(o.ops)}</td><td class="n">{rate(o.ops_per_second)}</td><td class="n">{bandwidth(o.bytes_per_second)}</td>
                <td class={`n ${o.failed ? "bad-text" : ""}`} title={Object.entries(o.errors).map(([kind, n]) => `${kind}: ${n}`).join("\n")}>{count(o.failed)}</td>
                <td class="n">{latencyOf(o.ops, o.last_byte.mean_ns)}</td><td class="n">{latencyOf(o.ops, o.last_byte.p50_ns)}</td><td class="n">{latencyOf(o.ops, o.last_byte.p95_ns)}</td><td class="n">{latencyOf(o.ops, o.last_byte.p99_ns)}</td><td class="n">{latencyOf(o.ops, o.last_byte.p999_ns)}</td><td class="n">{latencyOf(o.ops, o.last_byte.max_ns)}</td><td class="n">{latencyOf(o.ops, o.first_byte.p50_ns)}</td>
              </tr>
            )))}
          </tbody>
        </table>
      </TableFrame>
      <OpenLoops stages={stages} />
      <Errors stages={stages} />
      {stage && stage.worst.length > 0 && <Worst stage={stage} />}
    </section>
  );
}

/** Offered and achieved rates of open loops; first those that could not keep up. */
function OpenLoops({ stages }: { stages: StageFigures[] }) {
  const found = stages.flatMap((s) => s.operations.filter((o) => o.size_class === null && o.open_loop).map((o) => ({ stage: s.name, name: o.name, open: o.open_loop! })));
  const order = [...found].sort((a, b) => Number(b.open.overloaded) - Number(a.open.overloaded));
  return (
    <>
      {order.map(({ stage, name, open }) => (
        <p key={`${stage} ${name}`} class={`notice ${open.overloaded ? "bad" : "info small"}`}>
          {stage} {name}: {open.overloaded ? "could not keep up: " : ""}{rate(open.offered)} offered, {rate(open.achieved)} achieved; {percent(open.late)} began late, p50 {latency(open.delay_p50_ns)}, p99 {latency(open.delay_p99_ns)}, at most {latency(open.delay_max_ns)}.
        </p>
      ))}
    </>
  );
}

function Errors({ stages }: { stages: StageFigures[] }) {
  const kinds = new Map<string, number>();
  for (const stage of stages) for (const o of stage.operations) if (o.size_class === null) for (const [kind, n] of Object.entries(o.errors)) kinds.set(kind, (kinds.get(kind) ?? 0) + n);
  if (kinds.size === 0) return null;
  return <p class="notice bad">Failed operations: {[...kinds].sort((a, b) => b[1] - a[1]).map(([kind, n]) => `${kind} ${count(n)}`).join(", ")}. They are in no rate and no percentile.</p>;
}

function Overview({ stages, best }: { stages: StageFigures[]; best: StageFigures | null }) {
  const workers = stages.map((stage) => stage.workers);
  const byWorkers = new Set(workers).size === workers.length && new Set(workers).size > 1;
  const at = (stage: StageFigures, n: number) => (byWorkers ? stage.workers : n + 1);
  const points = (pick: (stage: StageFigures) => number): [number, number][] => stages.map((stage, n): [number, number] => [at(stage, n), pick(stage)]).sort((a, b) => a[0] - b[0]);
  const series: Series[] = [{ name: "all operations", color: 0, points: points((stage) => stage.ops_per_second) }];
  const name = (value: number) => (byWorkers ? number(value) : (stages[Math.round(value) - 1]?.name ?? number(value)));
  return (
    <Chart
      title={byWorkers ? "Throughput by workers" : "Throughput by stage"}
      note={best ? `best: ${rate(best.ops_per_second)} ${byWorkers ? `at ${plural(best.workers, "worker")}` : `in ${best.name}`}` : undefined}
      series={series} dots
      x={{ kind: byWorkers ? "log" : "linear", format: number, name, label: byWorkers ? "workers" : "stage" }}
      y={{ kind: "linear", format: rate, label: "operations a second" }}
    />
  );
}

function Distribution({ stage, stages, all, colors, choose }: { stage: StageFigures; stages: StageFigures[]; all: StageFigures[]; colors: Map<string, number>; choose: (name: string) => void }) {
  const series = stage.operations.filter((o) => o.size_class === null && o.last_byte.curve).map((o): Series => {
    const name = figureName(all, o);
    return { name, color: colors.get(name) ?? 0, points: o.last_byte.curve!.map(([ns, part]): [number, number] => [ns, part]) };
  });
  return (
      <Chart title="Response times" note={stages.length > 1 ? undefined : "share of requests answered within"} choice={stages.length > 1 && (
        <select aria-label="Stage" value={stage.name} onChange={(event) => choose(event.currentTarget.value)}>
          {stages.map((s) => <option key={s.name} value={s.name}>{s.name}</option>)}
        </select>
      )} series={series} x={{ kind: "log", format: latency, label: "within" }} y={{ kind: "linear", format: percent, label: "share of requests", top: 1 }} />
  );
}

function Worst({ stage }: { stage: StageFigures }) {
  return (
    <details>
      <summary>The slowest requests{stage.name ? ` of ${stage.name}` : ""}</summary>
      <TableFrame label="The slowest requests">
        <table>
          <thead><tr><th scope="col" class="n">Took</th><th scope="col" class="n">First byte</th><th scope="col">At</th><th scope="col">Object</th><th scope="col" class="n">Size</th><th scope="col">Transaction</th><th scope="col">Error</th></tr></thead>
          <tbody>
            {stage.worst.map((w) => (
              <tr key={`${w.at} ${w.object} ${w.transaction}`}>
                <td class="n">{latency(w.last_byte_ns)}</td><td class="n">{latency(w.first_byte_ns)}</td><td>{ofDay(w.at * 1000)}</td>
                <td>{w.container}{w.object ? `/${w.object}` : ""}</td><td class="n">{bytes(w.bytes)}</td><td><code>{w.transaction || "–"}</code></td><td class="bad-text">{w.error ?? ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </TableFrame>
    </details>
  );
}

const UNITS = { cores: number, bytes, bytes_per_second: bandwidth, part: percent, number };

function Resources({ course, start }: { course: Course; start: number }) {
  const [open, setOpen] = useState(false);
  const shown = useMemo(() => (open ? resources(course.resources, start) : []), [course.resources, start, open]);
  if (course.resources.length === 0) return null;
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Hosts: CPU, memory, network, disks</summary>
      <div class="charts">
        {shown.map((r) => <Chart key={r.name} title={r.name} series={r.series} x={TIME_AXIS} y={{ kind: "linear", format: UNITS[r.unit], label: r.name }} />)}
      </div>
    </details>
  );
}

function Facts({ entry }: { entry: Entry }) {
  const run = entry.run;
  if (!run) return null;
  const rows: [string, string][] = [
    ["Format", run.format], ["Target", run.target], ["Server", run.server], ["Seed", String(run.seed)], ["Lab", run.lab_version],
    ["Generator's ceiling", run.ceiling ? `${number(run.ceiling.ops_per_second)} no-op operations a second on ${plural(run.ceiling.threads, "thread")}` : ""],
    ["Drivers", run.drivers.map((d) => `${d.name || d.host.name} (${d.host.cores} cores, ${d.host.cpu})${d.lost ? ", lost" : ""}`).join("; ")],
    ["Command", run.command.join(" ")],
  ];
  return (
    <details>
      <summary>How it was run</summary>
      <dl class="facts">{rows.filter(([, value]) => value).map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
    </details>
  );
}

function Files({ id, state }: { id: string; state: string }) {
  const { data, error } = useLoad(() => get<FileEntry[]>(runPath(id, "/files")), [id, state]);
  if (!data || data.length === 0) return <ErrorBox error={error} />;
  const folders = [...new Set(data.filter((file) => file.path.includes("/")).map((file) => file.path.split("/")[0]!))];
  const report = data.find((file) => file.path === "report.html" || file.path.endsWith("/report.html"));
  return (
    <section aria-labelledby="files-title">
      <div class="page-head">
        <h2 id="files-title">Files</h2>
        <span class="muted small">{plural(data.length, "file")}, {bytes(data.reduce((sum, f) => sum + f.size, 0))}</span>
        <span class="spacer" />
        {report && <a class="button" href={filePath(id, report.path)} target="_blank" rel="noopener">Open the report</a>}
        <a class="button" href={runPath(id, "/archive")} download>Download all (.tar)</a>
      </div>
      <FileList id={id} files={data.filter((file) => !file.path.includes("/"))} />
      {folders.map((folder) => {
        const inside = data.filter((file) => file.path.startsWith(folder + "/"));
        return (
          <details key={folder}>
            <summary>{folder} <span class="muted small">{plural(inside.length, "file")}</span></summary>
            <FileList id={id} files={inside} />
          </details>
        );
      })}
    </section>
  );
}

function FileList({ id, files }: { id: string; files: FileEntry[] }) {
  return (
    <ul class="files">
      {files.map((file) => (
        <li key={file.path}><a href={filePath(id, file.path) + "?download"} download>{file.path}</a> <span class="muted small">{bytes(file.size)}</span></li>
      ))}
    </ul>
  );
}
