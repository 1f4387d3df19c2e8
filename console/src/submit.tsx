// A new run: a workload pasted, uploaded or made from a form; the store it runs on.

import { useEffect, useMemo, useState } from "preact/hooks";
import { Refused, call, get, runPath, type Session, type Submission, type Target } from "./api";
import { EMPTY, problems, workload, type Form } from "./form";
import { bytes, duration, plural } from "./format";
import { ErrorBox, Field, go, messageOf } from "./parts";
import { StoreLogin } from "./storelogin";

type Way = "form" | "paste" | "upload";

export function SubmitPage({ session, again, reload }: { session: Session; again: string | null; reload: () => Promise<void> }) {
  const store = session.store ?? null;
  const [way, setWay] = useState<Way>(again ? "paste" : "form");
  const [form, setForm] = useState<Form>(EMPTY);
  const [text, setText] = useState("");
  const [fileName, setFileName] = useState("workload.xml");
  const [name, setName] = useState("");
  const [target, setTarget] = useState<Target["kind"]>(store ? "store" : "url");
  const [url, setUrl] = useState("");
  const [user, setUser] = useState("");
  const [key, setKey] = useState("");
  const [seed, setSeed] = useState("");
  const [factor, setFactor] = useState("");
  const [checked, setChecked] = useState<Checked | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const [tried, setTried] = useState(false);

  useEffect(() => {
    if (!again) return;
    get<{ file_name: string; text: string }>(runPath(again, "/workload")).then((kept) => {
      setText(kept.text);
      setFileName(kept.file_name);
    }, setError);
  }, [again]);

  const wrong = useMemo(() => problems(form), [form]);
  useEffect(() => {
    // The place of a mistake is shown in the text.
    const place = error instanceof Refused && error.field === "text" ? /:(\d+):(\d+)/.exec(error.message) : null;
    const area = document.getElementById("text");
    if (!place || !(area instanceof HTMLTextAreaElement)) return;
    const lines = area.value.split("\n");
    const line = Math.min(Number(place[1]), lines.length) - 1;
    const start = lines.slice(0, line).reduce((sum, text) => sum + text.length + 1, 0);
    area.focus();
    area.setSelectionRange(start, start + (lines[line]?.length ?? 0));
    area.scrollTop = Math.max(0, (line - 5) * (area.scrollHeight / lines.length));
  }, [error]);

  const field = error instanceof Refused ? error.field : null;
  const of = (wanted: string) => (field === wanted ? messageOf(error) : null);
  // A refusal is told at its field where that field is on the page, else above the button.
  const fields = ["target", "time_scale", ...(target === "url" ? ["url", "user", "key"] : []), ...(way === "form" ? ["name"] : way === "paste" || text ? ["file_name", "text", "name"] : ["text"])];
  const shownElsewhere = fields.includes(field ?? "");
  const needsStore = target === "store" && store && !store.user;

  const chosen = (): Submission["target"] => (target === "url" ? { kind: "url", url, user, key } : { kind: target });

  const submit = async (event: Event) => {
    event.preventDefault();
    setTried(true);
    setError(null);
    if (way === "form" && wrong.length > 0) {
      document.getElementById(`form-${wrong[0]!.field}`)?.focus();
      return;
    }
    const submission: Submission = {
      name: way === "form" ? form.name : name,
      file_name: way === "form" ? "workload.xml" : fileName,
      text: way === "form" ? workload(form) : text,
      target: chosen(),
    };
    if (seed.trim()) submission.seed = Number(seed);
    if (factor.trim()) submission.time_scale = Number(factor.replace(",", "."));
    setBusy(true);
    try {
      const { id } = (await (await call("POST", "/api/runs", submission)).json()) as { id: string };
      go(`/run/${encodeURIComponent(id)}`);
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };

  const look = async () => {
    setError(null);
    try {
      setChecked((await (await call("POST", "/api/check", { file_name: fileName, text, target: needsStore || (target === "url" && !url) ? { kind: "file" } : chosen() })).json()) as Checked);
    } catch (failed) {
      setChecked(null);
      setError(failed);
    }
  };

  const take = async (file: File | undefined) => {
    if (!file) return;
    if (file.size > 4 << 20) return setError(new Refused(0, `${file.name}: ${bytes(file.size)}; a workload has at most 4 MiB.`, "text"));
    setError(null);
    setFileName(file.name);
    setText(await file.text());
    setWay("upload");
  };

  return (
    <>
      <h1>New run</h1>
      <form onSubmit={submit} noValidate class="submit">
        <section class="card" aria-labelledby="workload-title">
          <h2 id="workload-title">Workload</h2>
          <div class="segments" role="radiogroup" aria-label="Where the workload comes from">
            {([["form", "Form"], ["paste", "Write or paste"], ["upload", "Upload a file"]] as [Way, string][]).map(([value, label]) => (
              <label key={value}><input type="radio" name="way" value={value} checked={way === value} onChange={() => setWay(value)} /><span>{label}</span></label>
            ))}
          </div>
          {way === "form" ? <FormFields form={form} setForm={setForm} wrong={tried ? wrong : []} refused={of("name")} />
            : (
              <>
                {way === "upload" && (
                  <label class="drop" onDragOver={(event) => event.preventDefault()} onDrop={(event) => { event.preventDefault(); void take(event.dataTransfer?.files[0]); }}>
                    <input type="file" class="visually-hidden" id="file" accept=".xml,.toml,.conf,.scenario,.json,.txt,text/*,application/xml" onChange={(event) => void take(event.currentTarget.files?.[0])} />
                    <b>{text ? fileName : "Choose a workload file"}</b>
                    <span class="muted small">{text ? `${bytes(new Blob([text]).size)} · choose another one, or edit it below` : "or drop it here: COSBench XML, an ssbench scenario, a swift-bench conf, or the lab's own TOML"}</span>
                  </label>
                )}
                {(way === "paste" || text) && (
                  <>
                    <div class="columns">
                      <Field id="file_name" label="File name" hint="Its ending tells the format: .xml, .scenario, .conf, .toml" error={of("file_name")}>
                        <input id="file_name" value={fileName} onInput={(event) => setFileName(event.currentTarget.value)} />
                      </Field>
                      <Field id="name" label="Name of the run" hint="As the file, when empty" error={of("name")}>
                        <input id="name" value={name} onInput={(event) => setName(event.currentTarget.value)} />
                      </Field>
                    </div>
                    <Field id="text" label="Text" error={of("text")}>
                      <textarea id="text" rows={16} spellcheck={false} wrap="off" value={text} onInput={(event) => (setText(event.currentTarget.value), setChecked(null))} />
                    </Field>
                    <div class="buttons"><button type="button" onClick={look}>Check it</button></div>
                    {checked && <PlanView plan={checked} />}
                  </>
                )}
                {way === "upload" && !text && of("text") && <p class="field-error" role="alert">{of("text")}</p>}
              </>
            )}
          {way === "form" && (
            <details>
              <summary>The workload file it makes (COSBench XML)</summary>
              <pre class="log" tabIndex={0} aria-label="Workload file">{wrong.length ? "Some fields are not right yet." : workload(form)}</pre>
              {wrong.length === 0 && <button type="button" onClick={() => { setText(workload(form)); setFileName("workload.xml"); setName(form.name); setWay("paste"); }}>Edit it as text</button>}
            </details>
          )}
        </section>

        <section class="card" aria-labelledby="target-title">
          <h2 id="target-title">Target</h2>
          <div class="segments" role="radiogroup" aria-label="The store it runs on">
            {store && <label><input type="radio" name="target" checked={target === "store"} onChange={() => setTarget("store")} /><span>This store</span></label>}
            <label><input type="radio" name="target" checked={target === "url"} onChange={() => setTarget("url")} /><span>Another store</span></label>
            <label><input type="radio" name="target" checked={target === "file"} onChange={() => setTarget("file")} /><span>As the workload says</span></label>
          </div>
          {of("target") && <p class="field-error" role="alert">{of("target")}</p>}
          {target === "store" && store && (store.user
            ? <p>It runs on <code>{store.endpoint}</code> in the account of <b>{store.user.name}</b>, over the network as any client. The load shares this machine with the store.</p>
            : null)}
          {target === "url" && (
            <>
              <Field id="url" label="URL" hint="http://proxy:8080/auth/v1.0 signs in to Swift; for others see the documentation of --target" error={of("url")}>
                <input id="url" type="text" inputMode="url" autocapitalize="off" spellcheck={false} value={url} onInput={(event) => setUrl(event.currentTarget.value)} />
              </Field>
              <div class="columns">
                <Field id="user" label="User or access key" error={of("user")}>
                  <input id="user" autocapitalize="off" spellcheck={false} autocomplete="off" value={user} onInput={(event) => setUser(event.currentTarget.value)} />
                </Field>
                <Field id="key" label="Key or secret" hint="Kept in memory until the run is over, and nowhere else" error={of("key")}>
                  <input id="key" type="password" autocomplete="off" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
                </Field>
              </div>
            </>
          )}
          <div class="columns">
          <Field id="factor" label="Time factor" hint="Multiplies ramp-up, runtime and delays; 0.1 is a tenth" error={of("time_scale")}>
            <input id="factor" inputMode="decimal" value={factor} onInput={(event) => setFactor(event.currentTarget.value.replace(/[^\d.,]/g, "").slice(0, 12))} />
          </Field>
          <Field id="seed" label="Seed" hint="The same seed makes the same requests; left empty, the workload's own">
            <input id="seed" inputMode="numeric" pattern="[0-9]*" value={seed} onInput={(event) => setSeed(event.currentTarget.value.replace(/\D/g, "").slice(0, 15))} />
          </Field>
          </div>
        </section>
        {!shownElsewhere && <ErrorBox error={error} />}
        {!needsStore && (
          <div class="buttons">
            <button type="submit" class="primary" disabled={busy}>Start the run</button>
            <span class="muted small">One run at a time: another one waits until it is over.</span>
          </div>
        )}
      </form>
      {needsStore && <section class="card" aria-label="Sign in to the store"><StoreLogin store={store} onDone={reload} /></section>}
    </>
  );
}

interface Checked {
  format: string;
  name: string;
  notes: string[];
  uses: string[];
  stages: { name: string; works: { kind: string; workers: number; seconds: number | null; rampup: number; operations: string[] }[] }[];
}

/** What a workload would do. */
function PlanView({ plan }: { plan: Checked }) {
  const seconds = plan.stages.reduce((sum, stage) => sum + Math.max(0, ...stage.works.map((work) => (work.seconds ?? 0) + work.rampup)), 0);
  return (
    <div role="status">
      <p><b>{plan.name || "A workload"}</b>, {plan.format}: {plural(plan.stages.length, "stage")}{seconds ? `, ${duration(seconds)} of set runtime` : ""}.</p>
      {plan.uses.length > 0 && <p>A run of it {plan.uses.join("; ")}.</p>}
      {plan.notes.map((note) => <p key={note} class="notice info small">{note}</p>)}
      <ol class="plan small">
        {plan.stages.slice(0, 40).map((stage) => (
          <li key={stage.name}><b>{stage.name}</b> {stage.works.map((work) => `${work.kind}, ${plural(work.workers, "worker")}${work.seconds ? `, ${duration(work.seconds)}` : ""}${work.kind === "main" ? `: ${[...new Set(work.operations)].join(", ")}` : ""}`).join("; ")}</li>
        ))}
      </ol>
      {plan.stages.length > 40 && <p class="muted small">and {plan.stages.length - 40} more</p>}
    </div>
  );
}

/** `refused`: what the server said of the name. */
function FormFields({ form, setForm, wrong, refused }: { form: Form; setForm: (form: Form) => void; wrong: ReturnType<typeof problems>; refused: string | null }) {
  const of = (field: keyof Form) => wrong.find((problem) => problem.field === field)?.message ?? (field === "name" ? refused : null);
  const text = (field: "name" | "size" | "workers", label: string, hint?: string) => (
    <Field id={`form-${field}`} label={label} hint={hint} error={of(field)}>
      <input id={`form-${field}`} value={form[field]} onInput={(event) => setForm({ ...form, [field]: event.currentTarget.value })} />
    </Field>
  );
  const whole = (field: "containers" | "objects" | "read" | "write" | "remove" | "rampup" | "runtime", label: string, hint?: string) => (
    <Field id={`form-${field}`} label={label} hint={hint} error={of(field)}>
      <input id={`form-${field}`} type="number" inputMode="numeric" min={0} step={1} value={form[field]} onInput={(event) => setForm({ ...form, [field]: event.currentTarget.valueAsNumber })} />
    </Field>
  );
  return (
    <>
      <div class="columns">
        {text("name", "Name")}
        {text("size", "Object size", "64KB, or a range: 4KB-1MB")}
        {whole("containers", "Containers")}
        {whole("objects", "Objects in each", "written before it is measured")}
        {whole("read", "Reads, %")}
        {whole("write", "Writes, %")}
        {whole("remove", "Deletes, %")}
        {text("workers", "Workers", "8, or several rounds: 1, 8, 64")}
        {whole("rampup", "Ramp-up, seconds", "not counted")}
        {whole("runtime", "Measured, seconds", "each round")}
      </div>
      <label class="check"><input type="checkbox" checked={form.hashcheck} onChange={(event) => setForm({ ...form, hashcheck: event.currentTarget.checked })} /> Check the content of every read</label>
      <label class="check"><input type="checkbox" checked={form.cleanup} onChange={(event) => setForm({ ...form, cleanup: event.currentTarget.checked })} /> Delete objects and containers afterwards</label>
    </>
  );
}
