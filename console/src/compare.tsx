// Two runs beside each other, stage by stage and operation by operation.

import { useMemo, useState } from "preact/hooks";
import { call, get, runPath, type Entry, type OperationFigures, type StageFigures } from "./api";
import { Chart } from "./chart";
import { bandwidth, change, count, latency, latencyOf, percent, plural, rate, time } from "./format";
import { useCourse } from "./live";
import { ErrorBox, TableFrame, go, useLoad } from "./parts";
import { overTime, lineNames, type Series } from "./series";
import { TIME_AXIS } from "./run";

export function Compare({ a, b }: { a: string | null; b: string | null }) {
  const runs = useLoad(() => get<Entry[]>("/api/runs"), []);
  const fit = (runs.data ?? []).filter((run) => run.headline && run.headline.ops > 0);
  const choose = (which: "a" | "b", id: string) => {
    const query = new URLSearchParams();
    const [first, second] = which === "a" ? [id, b] : [a, id];
    if (first) query.set("a", first);
    if (second) query.set("b", second);
    go(`/compare?${query.toString()}`);
  };
  const select = (which: "a" | "b", value: string | null) => (
    <div class="field">
      <label for={`run-${which}`}>{which === "a" ? "First run (A)" : "Second run (B)"}</label>
      <select id={`run-${which}`} value={value ?? ""} onChange={(event) => choose(which, event.currentTarget.value)}>
        <option value="">Choose a run…</option>
        {fit.map((run) => <option key={run.id} value={run.id}>{run.name} · {time(run.submitted)}</option>)}
      </select>
    </div>
  );
  return (
    <>
      <h1>Compare</h1>
      <ErrorBox error={runs.error} />
      <div class="card columns two">
        {select("a", a)}
        {select("b", b)}
      </div>
      {runs.data && fit.length < 2 && !(a && b) && <p class="card muted empty">Two runs with results are needed; there {fit.length === 1 ? "is one" : "is none"}. <a href="#/new">Submit a workload</a></p>}
      {a && b && (a === b
        ? <p class="notice">These are the same run.</p>
        : <>{runs.data && <Verdicts key={`v ${a} ${b}`} a={a} b={b} runs={fit} />}<Pair key={`${a} ${b}`} a={a} b={b} names={[nameOf(runs.data, a, "A"), nameOf(runs.data, b, "B")]} /></>)}
    </>
  );
}

interface Verdict {
  repetitions: [number, number];
  better: boolean | null;
  headline: string;
  warnings: string[];
  notes: string[];
  rows: { stage: string; operation: string; measure: string; more_is_better: boolean; a: number; b: number; change: number | null; low: number | null; high: number | null; verdict: "better" | "worse" | "equivalent" | "open" | "too_few" | "not_ranked"; repetitions: number | null; words: string }[];
}

/** Runs of the same name and plan on the same target are repetitions; those of the other side are not. */
export function repetitionsOf(id: string, other: string, runs: Entry[]): string[] {
  const run = runs.find((one) => one.id === id);
  const rival = runs.find((one) => one.id === other);
  const alike = (one: Entry, as: Entry | undefined) => one.name === as?.name && one.run?.plan_digest === as?.run?.plan_digest && (one.run?.target || one.target) === (as?.run?.target || as?.target);
  // Of runs of older programs it is not known what they measured.
  if (!run?.run?.plan_digest || alike(run, rival)) return [id];
  return runs.filter((one) => one.state === "done" && alike(one, run)).map((one) => one.id).slice(0, 50);
}

function Verdicts({ a, b, runs }: { a: string; b: string; runs: Entry[] }) {
  const sides = { a: repetitionsOf(a, b, runs), b: repetitionsOf(b, a, runs) };
  const { data, error } = useLoad(async () => (sides.a.length && runs.length ? ((await (await call("POST", "/api/compare", sides)).json()) as Verdict) : null), [sides.a.join(), sides.b.join(), runs.length]);
  if (error) return <p class="notice info">No verdict: {error.message}</p>;
  if (!data) return null;
  const [one, two] = data.repetitions;
  const least = Math.max(0, ...data.rows.filter((row) => row.verdict === "too_few").map((row) => row.repetitions ?? 0));
  const rows = data.rows.filter((row) => row.verdict !== "too_few");
  const part = (value: number | null) => (value === null ? "–" : change(1, 1 + value));
  return (
    <section aria-labelledby="verdict-title">
      <div class="page-head"><h2 id="verdict-title">Verdict</h2><span class="muted small">A: {plural(one, "run")}, B: {plural(two, "run")} of the same name, plan and target</span></div>
      {data.warnings.map((warning) => <p key={warning} class="notice bad" role="alert">{warning}</p>)}
      {rows.length === 0
        ? <p class="notice info">One run of each is one draw of each: there is no verdict on {plural(Math.min(one, two), "repetition")}. Run both again, in turn, until there are {least} of each; runs of the same name and plan on the same target count as repetitions.</p>
        : (
          <>
            <p class="card">{data.headline}{least > 0 ? ` For percentiles ${least} repetitions of each are needed.` : ""}</p>
            <TableFrame label="Verdict">
              <table>
                <thead><tr><th scope="col">Stage</th><th scope="col">Operation</th><th scope="col">Measure</th><th scope="col" class="n">B against A</th><th scope="col" class="n">95 % interval</th><th scope="col">Verdict</th></tr></thead>
                <tbody>{rows.map((row) => (
                  <tr key={`${row.stage} ${row.operation} ${row.measure}`}>
                    <td class="first">{row.stage}</td><td>{row.operation}</td><td>{row.measure}</td>
                    <td class="n">{part(row.change)}</td><td class="n">{part(row.low)} to {part(row.high)}</td>
                    <td><span class={row.verdict === "better" || row.verdict === "worse" ? row.verdict : "muted"}>{row.words}</span></td>
                  </tr>
                ))}</tbody>
              </table>
            </TableFrame>
          </>
        )}
      {data.notes.map((note) => <p key={note} class="notice info small">{note}</p>)}
    </section>
  );
}

function nameOf(runs: Entry[] | null, id: string, letter: string): string {
  return `${letter}: ${runs?.find((run) => run.id === id)?.name ?? id}`;
}

function Pair({ a, b, names }: { a: string; b: string; names: [string, string] }) {
  const first = useLoad(() => get<StageFigures[]>(runPath(a, "/stages")), [a]);
  const second = useLoad(() => get<StageFigures[]>(runPath(b, "/stages")), [b]);
  if (first.error || second.error) return <ErrorBox error={first.error ?? second.error} />;
  if (!first.data || !second.data) return <p class="muted">Loading…</p>;
  return <Figures a={a} b={b} names={names} first={first.data} second={second.data} />;
}

interface Match {
  key: string;
  stage: string;
  operation: string;
  a: OperationFigures;
  b: OperationFigures;
}

/** Operations of stages of the same name; where names differ, of the same place. */
export function matches(first: StageFigures[], second: StageFigures[]): Match[] {
  const [one, two] = [first.filter((s) => s.main), second.filter((s) => s.main)];
  return one.flatMap((stage, place) => {
    const other = two.find((s) => s.name === stage.name) ?? (two.some((s) => one.some((o) => o.name === s.name)) ? undefined : two[place]);
    if (!other) return [];
    return stage.operations.filter((o) => o.size_class === null).flatMap((o) => {
      const twin = other.operations.find((t) => t.size_class === null && t.name === o.name);
      return twin ? [{ key: `${stage.name} ${o.work} ${o.name}`, stage: stage.name, operation: o.name, a: o, b: twin }] : [];
    });
  });
}

function Figures({ a, b, names, first, second }: { a: string; b: string; names: [string, string]; first: StageFigures[]; second: StageFigures[] }) {
  const found = useMemo(() => matches(first, second), [first, second]);
  const [chosen, setChosen] = useState("");
  const [measure, setMeasure] = useState<"p50_ns" | "p95_ns" | "p99_ns" | "p999_ns">("p99_ns");
  const match = found.find((m) => m.key === chosen) ?? found[0];
  if (!match) return <p class="notice">These runs have no stage and operation in common.</p>;
  const stages = [...new Set(found.map((m) => m.stage))];
  const curve = (o: OperationFigures, color: number): Series => ({ name: names[color]!, color, points: (o.last_byte.curve ?? []).map(([ns, part]): [number, number] => [ns, part]) });
  const label = measure === "p999_ns" ? "p99.9" : measure.replace("_ns", "");
  return (
    <>
      <section aria-labelledby="differences">
        <div class="page-head">
          <h2 id="differences">Differences</h2>
          <span class="spacer" />
          <label>Response time <select value={measure} onChange={(event) => setMeasure(event.currentTarget.value as typeof measure)}>
            <option value="p50_ns">p50</option><option value="p95_ns">p95</option><option value="p99_ns">p99</option><option value="p999_ns">p99.9</option>
          </select></label>
        </div>
        <TableFrame label="Differences between the two runs">
          <table>
            <thead>
              <tr><th scope="col" rowSpan={2}>Stage</th><th scope="col" rowSpan={2}>Operation</th><th scope="colgroup" colSpan={3} class="group">Rate</th><th scope="colgroup" colSpan={3} class="group">Bandwidth</th><th scope="colgroup" colSpan={3} class="group">{label}</th><th scope="colgroup" colSpan={2} class="group">Failed</th></tr>
              <tr>{["A", "B", "change", "A", "B", "change", "A", "B", "change", "A", "B"].map((head, n) => <th key={n} scope="col" class="n">{head}</th>)}</tr>
            </thead>
            <tbody>
              {found.map((m, n) => (
                <tr key={m.key} class={m === match && found.length > 1 ? "chosen" : ""}>
                  <td class="first">{found[n - 1]?.stage === m.stage ? "" : m.stage}</td><td>{found.length > 1 ? <button type="button" class="link" aria-pressed={m === match} onClick={() => setChosen(m.key)}>{m.operation}</button> : m.operation}</td>
                  <td class="n">{rate(m.a.ops_per_second)}</td><td class="n">{rate(m.b.ops_per_second)}</td><td class="n"><Change from={m.a.ops_per_second} to={m.b.ops_per_second} /></td>
                  <td class="n">{bandwidth(m.a.bytes_per_second)}</td><td class="n">{bandwidth(m.b.bytes_per_second)}</td><td class="n"><Change from={m.a.bytes_per_second} to={m.b.bytes_per_second} /></td>
                  <td class="n">{latencyOf(m.a.ops, m.a.last_byte[measure])}</td><td class="n">{latencyOf(m.b.ops, m.b.last_byte[measure])}</td><td class="n"><Change from={m.a.last_byte[measure]} to={m.b.last_byte[measure]} /></td>
                  <td class={`n ${m.a.failed ? "bad-text" : ""}`}>{count(m.a.failed)}</td><td class={`n ${m.b.failed ? "bad-text" : ""}`}>{count(m.b.failed)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </TableFrame>
      </section>
      <div class="charts">
        {stages.length > 1 && <StageRates found={found} stages={stages} names={names} />}
        <Chart title={`Response times, ${match.operation}`} note={stages.length > 1 ? match.stage : undefined} series={[curve(match.a, 0), curve(match.b, 1)]} x={{ kind: "log", format: latency, label: "within" }} y={{ kind: "linear", format: percent, label: "share of requests", top: 1 }} />
        <Courses a={a} b={b} names={names} stage={match.stage} operation={match.operation} />
      </div>
    </>
  );
}

/** A difference of two runs, without a colour: whether it means anything is the verdict's to say. */
function Change({ from, to }: { from: number; to: number }) {
  return <span>{change(from, to)}</span>;
}

function StageRates({ found, stages, names }: { found: Match[]; stages: string[]; names: [string, string] }) {
  const sum = (pick: (m: Match) => number, color: number): Series => ({
    name: names[color]!, color,
    points: stages.map((stage, n): [number, number] => [n + 1, found.filter((m) => m.stage === stage).reduce((all, m) => all + pick(m), 0)]),
  });
  return <Chart title="Throughput by stage" dots series={[sum((m) => m.a.ops_per_second, 0), sum((m) => m.b.ops_per_second, 1)]} x={{ kind: "linear", format: (n) => (Number.isInteger(n) ? String(n) : ""), name: (n) => stages[n - 1] ?? "", label: "stage" }} y={{ kind: "linear", format: rate, label: "operations a second" }} />;
}

/** The operation's rate over each run's own time in the stage. */
function Courses({ a, b, names, stage, operation }: { a: string; b: string; names: [string, string]; stage: string; operation: string }) {
  const courses = [useCourse(a), useCourse(b)];
  const series = useMemo(() => courses.map((course, color): Series => {
    const samples = course.samples.filter((sample) => sample.stage === stage);
    const start = samples[0] ? samples[0].at - samples[0].seconds : 0;
    const line = lineNames(samples).find((name) => name === operation || name.endsWith(" " + operation));
    const points = line ? overTime(samples, start, (o, s) => o.ops / (s.seconds || 1), [line])[0]?.points : undefined;
    return { name: names[color]!, color, points: points ?? [] };
  }), [courses[0]!.samples, courses[1]!.samples, stage, operation]);
  return <Chart title={`Operations over time, ${operation}`} note={stage} series={series} x={TIME_AXIS} y={{ kind: "linear", format: rate, label: "operations a second" }} />;
}
