// Small parts that every page uses.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { Refused, call, runPath, type Entry, type State } from "./api";

export const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

/** Loads on sight and every `every` seconds, unless the page is hidden. */
export function useLoad<T>(load: () => Promise<T>, deps: unknown[], every?: number): { data: T | null; error: Refused | null; again: () => void } {
  const [data, setData] = useState<T | null>(null);
  const [error, setError] = useState<Refused | null>(null);
  const turn = useRef(0);
  const again = useCallback(() => {
    const mine = (turn.current += 1);
    load().then(
      (loaded) => mine === turn.current && (setData(loaded), setError(null)),
      (failed) => mine === turn.current && setError(failed instanceof Refused ? failed : new Refused(0, messageOf(failed), null)),
    );
  }, deps);
  useEffect(() => {
    setData(null);
    again();
    if (!every) return () => void (turn.current += 1);
    const timer = setInterval(() => !document.hidden && again(), every * 1000);
    return () => {
      turn.current += 1;
      clearInterval(timer);
    };
  }, [again]);
  return { data, error, again };
}

export function ErrorBox({ error }: { error: unknown }) {
  return error ? <p class="notice bad" role="alert">{messageOf(error)}</p> : null;
}

const WORDS: Record<State, string> = {
  waiting: "waiting",
  running: "running",
  done: "done",
  failed: "failed",
  cancelled: "cancelled",
  interrupted: "interrupted",
};

/** `broken`: conditions that hold of a run that was completed. */
export function Badge({ state, broken }: { state: State; broken?: string[] | undefined }) {
  if (state === "done" && broken?.length) return <span class="badge flawed" title={broken.join("\n")}>done, over limits</span>;
  return <span class={`badge ${state}`}>{WORDS[state]}</span>;
}

export function Tile({ label, value, hint, tone }: { label: string; value: string; hint?: string | undefined; tone?: "bad" | undefined }) {
  return (
    <div class={`tile ${tone ?? ""}`}>
      <dt>{label}</dt>
      <dd>{value}</dd>
      {hint && <dd class="hint">{hint}</dd>}
    </div>
  );
}

export function Progress({ part, label }: { part: number; label: string }) {
  const percent = Math.round(Math.min(1, Math.max(0, part)) * 100);
  return (
    <div class="progress" role="progressbar" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent}>
      <div style={{ width: `${percent}%` }} />
    </div>
  );
}

/** A wide table scrolls in its own frame, by keys too. */
export function TableFrame({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="table-frame" role="region" aria-label={label} tabIndex={0}>
      {children}
    </div>
  );
}

/** Words by which a run is told apart: its tags, scale and workload file. */
export function Marks({ run, file_name }: Pick<Entry, "run" | "file_name">) {
  const file = run?.file || file_name;
  return (
    <>
      {run?.tags?.map((tag) => <span key={tag} class="tag">{tag}</span>)}
      {run?.scale && <span class="small muted"> scale {run.scale}</span>}
      {file && <span class="small muted"> {file}</span>}
    </>
  );
}

/** Another name and other tags of a run. */
export function Rename({ entry, onDone, onNo }: { entry: Entry; onDone: () => void; onNo: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [name, setName] = useState(entry.name);
  const [tags, setTags] = useState((entry.run?.tags ?? []).join(", "));
  const [error, setError] = useState<Refused | null>(null);
  useEffect(() => dialog.current?.showModal(), []);
  const save = (event: Event) => {
    event.preventDefault();
    const words = tags.split(",").map((tag) => tag.trim()).filter(Boolean);
    call("PATCH", runPath(entry.id), { name, tags: words }).then(onDone, (failed) => setError(failed instanceof Refused ? failed : new Refused(0, messageOf(failed), null)));
  };
  const at = (field: string) => (error?.field === field ? error.message : null);
  return (
    <dialog ref={dialog} onCancel={onNo} aria-labelledby="rename-title">
      <form onSubmit={save}>
        <h2 id="rename-title">Name and tags</h2>
        <Field id="rename-name" label="Name" error={at("name")}><input id="rename-name" value={name} onInput={(event) => setName(event.currentTarget.value)} /></Field>
        <Field id="rename-tags" label="Tags" hint="words with commas between them" error={at("tags")}><input id="rename-tags" value={tags} onInput={(event) => setTags(event.currentTarget.value)} /></Field>
        <ErrorBox error={error && !at("name") && !at("tags") ? error : null} />
        <div class="buttons end">
          <button type="button" onClick={onNo}>Leave it</button>
          <button type="submit" class="primary">Save</button>
        </div>
      </form>
    </dialog>
  );
}

/** Asks before something that cannot be undone. */
export function Confirm({ title, text, action, onYes, onNo }: { title: string; text: string; action: string; onYes: () => void; onNo: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onCancel={onNo} aria-labelledby="confirm-title">
      <h2 id="confirm-title">{title}</h2>
      <p>{text}</p>
      <div class="buttons end">
        <button type="button" onClick={onNo}>Keep it</button>
        <button type="button" class="danger" onClick={onYes}>{action}</button>
      </div>
    </dialog>
  );
}

export function Field({ label, hint, error, children, id }: { label: string; hint?: string | undefined; error?: string | null | undefined; children: ComponentChildren; id: string }) {
  return (
    <div class={`field ${error ? "wrong" : ""}`}>
      <label for={id}>{label}</label>
      {children}
      {error ? <p class="field-error" id={`${id}-error`} role="alert">{error}</p> : hint ? <p class="hint" id={`${id}-hint`}>{hint}</p> : null}
    </div>
  );
}

/** Seconds since 1970, each second anew. */
export function useClock(running: boolean): number {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    if (!running) return;
    setNow(Date.now() / 1000);
    const timer = setInterval(() => setNow(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, [running]);
  return now;
}

export function go(path: string) {
  location.hash = "#" + path;
}
