// The queue and the history.

import { useState } from "preact/hooks";
import { call, get, runPath, type Entry } from "./api";
import { bytes, count, duration, latencyOf, number, plural, time } from "./format";
import { Badge, Confirm, ErrorBox, Marks, Rename, TableFrame, go, useLoad } from "./parts";

export function Runs() {
  const { data, error, again } = useLoad(() => get<Entry[]>("/api/runs"), [], 2);
  const [filter, setFilter] = useState("");
  const [chosen, setChosen] = useState<string[]>([]);
  const [removing, setRemoving] = useState<Entry | null>(null);
  const [renaming, setRenaming] = useState<Entry | null>(null);
  const [failed, setFailed] = useState<unknown>(null);
  if (!data) return <><h1>Runs</h1><ErrorBox error={error} /></>;
  const active = data.filter((run) => run.state === "waiting" || run.state === "running");
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const over = data.filter((run) => !active.includes(run)).filter((run) => {
    const told = [run.name, run.target, run.file_name, run.run?.file, run.run?.scale, ...(run.run?.tags ?? []), run.state, run.id];
    const text = told.join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const cancel = (run: Entry) => call("POST", runPath(run.id, "/cancel")).then(again, setFailed);
  const remove = (run: Entry) => {
    setRemoving(null);
    setChosen(chosen.filter((id) => id !== run.id));
    call("DELETE", runPath(run.id)).then(again, setFailed);
  };
  const choose = (id: string, on: boolean) => setChosen(on ? [...chosen.slice(-1), id] : chosen.filter((other) => other !== id));
  return (
    <>
      <div class="page-head">
        <h1>Runs</h1>
        <span class="spacer" />
        <a class="button primary" href="#/new">New run</a>
      </div>
      <ErrorBox error={error ?? failed} />
      {active.length > 0 && (
        <section aria-labelledby="queue-title">
          <h2 id="queue-title">Under way and waiting</h2>
          <ol class="queue">
            {[...active].reverse().sort((a, b) => Number(b.state === "running") - Number(a.state === "running")).map((run, place) => (
              <li key={run.id} class="card row">
                <Badge state={run.state} />
                <div class="grow">
                  <a href={`#/run/${encodeURIComponent(run.id)}`}><b>{run.name}</b></a>
                  <div class="muted small">{run.target || "as the workload says"} · {run.state === "running" && run.started ? `began ${time(run.started)}` : `number ${place + 1} in the queue`}</div>
                </div>
                <button type="button" onClick={() => cancel(run)} aria-label={`Cancel ${run.name}`}>Cancel</button>
              </li>
            ))}
          </ol>
        </section>
      )}
      <section aria-labelledby="history-title">
        <div class="page-head">
          <h2 id="history-title">History</h2>
          <span class="muted small">{plural(over.length, "run")}</span>
          <span class="spacer" />
          <input type="search" placeholder="Filter" aria-label="Filter the history" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
          <button type="button" disabled={chosen.length !== 2} onClick={() => go(`/compare?a=${encodeURIComponent(chosen[0]!)}&b=${encodeURIComponent(chosen[1]!)}`)}>
            Compare {chosen.length}/2
          </button>
        </div>
        {over.length === 0 ? (
          <p class="card muted empty">{data.length === 0 ? <>No run yet. <a href="#/new">Submit a workload</a>: COSBench, ssbench and swift-bench files are read unchanged.</> : "No run matches."}</p>
        ) : (
          <TableFrame label="History of runs">
            <table>
              <thead>
                <tr><th scope="col"><span class="visually-hidden">Choose for a comparison</span></th><th scope="col">Run</th><th scope="col">State</th><th scope="col" class="n opt">Operations</th><th scope="col" class="n">Rate</th><th scope="col" class="n opt">Bandwidth</th><th scope="col" class="n opt">p50</th><th scope="col" class="n">p99</th><th scope="col" class="n">Failed</th><th scope="col" class="n opt">Took</th><th scope="col"><span class="visually-hidden">Rename or remove</span></th></tr>
              </thead>
              <tbody>
                {over.map((run) => <Row key={run.id} run={run} chosen={chosen.includes(run.id)} choose={choose} rename={() => setRenaming(run)} remove={() => setRemoving(run)} />)}
              </tbody>
            </table>
          </TableFrame>
        )}
      </section>
      {renaming && <Rename entry={renaming} onNo={() => setRenaming(null)} onDone={() => { setRenaming(null); again(); }} />}
      {removing && (
        <Confirm title={`Remove “${removing.name}”?`} text="Its folder and all its results are deleted from disk. This cannot be undone." action="Remove it" onNo={() => setRemoving(null)} onYes={() => remove(removing)} />
      )}
    </>
  );
}

function Row({ run, chosen, choose, rename, remove }: { run: Entry; chosen: boolean; choose: (id: string, on: boolean) => void; rename: () => void; remove: () => void }) {
  const head = run.headline && run.headline.ops + run.headline.failed > 0 ? run.headline : null;
  const took = run.started && run.ended ? duration((run.ended - run.started) / 1000) : "–";
  return (
    <tr>
      <td><input type="checkbox" aria-label={`Choose ${run.name} for a comparison`} checked={chosen} disabled={!head} onChange={(event) => choose(run.id, event.currentTarget.checked)} /></td>
      <td class="first">
        <a href={`#/run/${encodeURIComponent(run.id)}`}>{run.name}</a>
        <div class="muted small">{time(run.submitted)} · {run.run?.target || run.target}</div>
        <div class="clip"><Marks run={run.run} file_name={run.file_name} /></div>
        {run.run?.broken?.[0] && <div class="small bad-text clip">{run.run.broken[0]}</div>}
        {run.message && <div class="small bad-text clip">{run.message.split("\n")[0]}</div>}
      </td>
      <td><Badge state={run.state} broken={run.run?.broken} /></td>
      <td class="n opt">{head ? count(head.ops) : "–"}</td>
      <td class="n" title={head && head.stages > 1 ? `The best of ${head.stages} stages` : undefined}>{head ? `${number(head.ops_per_second)}/s` : "–"}{head && head.stages > 1 ? "*" : ""}</td>
      <td class="n opt">{head ? `${bytes(head.bytes_per_second)}/s` : "–"}</td>
      <td class="n opt">{head ? latencyOf(head.ops, head.p50_ns) : "–"}</td>
      <td class="n">{head ? latencyOf(head.ops, head.p99_ns) : "–"}</td>
      <td class={`n ${head?.failed ? "bad-text" : ""}`}>{head ? count(head.failed) : "–"}</td>
      <td class="n opt">{took}</td>
      <td class="n"><button type="button" class="quiet" aria-label={`Name and tags of ${run.name}`} title="Name and tags" onClick={rename}>✎</button><button type="button" class="quiet" aria-label={`Remove ${run.name}`} title="Remove" onClick={remove}>✕</button></td>
    </tr>
  );
}
