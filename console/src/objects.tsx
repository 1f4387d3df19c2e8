// Containers and objects of the signed-in user's account: looked at, uploaded, downloaded, deleted.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Refused, call, swift, upload, type StoreAbout, type StoreUser } from "./api";
import { bytes, count, plural, shownName, time } from "./format";
import { Confirm, ErrorBox, Progress, TableFrame, messageOf, useLoad } from "./parts";
import { StoreLogin } from "./storelogin";

const PAGE = 200;
/** Names that are sorted at once, which is what the store lists at once. */
const SORTED_MAX = 10_000;

const ORDERS = {
  name: (a: Row, b: Row) => (titleOf(a) < titleOf(b) ? -1 : 1),
  bytes: (a: Row, b: Row) => (a.bytes ?? -1) - (b.bytes ?? -1),
  content_type: (a: Row, b: Row) => (a.content_type ?? "").localeCompare(b.content_type ?? ""),
  last_modified: (a: Row, b: Row) => (a.last_modified ?? "").localeCompare(b.last_modified ?? ""),
};
type Column = keyof typeof ORDERS;
interface Order { by: Column; falling: boolean }
const AS_LISTED: Order = { by: "name", falling: false };

const titleOf = (row: Row) => row.name ?? row.subdir ?? "";

interface Props {
  store: StoreAbout;
  path: string[];
  prefix: string;
  reload: () => Promise<void>;
}

export function ObjectsPage({ store, path, prefix, reload }: Props) {
  if (!store.user) return <section class="card"><StoreLogin store={store} onDone={reload} /></section>;
  const container = path[0];
  const signOut = () => call("DELETE", "/api/store/user").finally(() => void reload());
  return (
    <>
      <div class="page-head">
        <h1>Objects</h1>
        <span class="spacer" />
        <span class="muted small">{store.user.name} · {store.user.account}</span>
        <button type="button" onClick={signOut}>Sign out of the store</button>
      </div>
      {container ? <Container key={container + "/" + prefix} user={store.user} container={container} prefix={prefix} reload={reload} /> : <Containers user={store.user} reload={reload} />}
    </>
  );
}

/** A token that has ended brings the sign-in back. */
function useStore(reload: () => Promise<void>) {
  const [error, setError] = useState<unknown>(null);
  const fail = (failed: unknown) => {
    setError(failed);
    if (failed instanceof Refused && failed.field === "store") void call("DELETE", "/api/store/user").finally(() => reload());
  };
  return { error, setError, fail };
}

interface Listed { name: string; count: number; bytes: number; last_modified?: string }

function Containers({ user, reload }: { user: StoreUser; reload: () => Promise<void> }) {
  const { error, setError, fail } = useStore(reload);
  const [name, setName] = useState("");
  const [marker, setMarker] = useState("");
  const [removing, setRemoving] = useState<string | null>(null);
  const list = useLoad(async () => {
    const response = await swift("GET", user.account, { format: "json", limit: String(PAGE), ...(marker && { marker }) });
    const about = { containers: Number(response.headers.get("x-account-container-count")), bytes: Number(response.headers.get("x-account-bytes-used")), objects: Number(response.headers.get("x-account-object-count")) };
    return { about, found: response.status === 204 ? [] : ((await response.json()) as Listed[]) };
  }, [user.account, marker]);
  const make = async (event: Event) => {
    event.preventDefault();
    if (name.includes("/") || !name) return setError(new Refused(0, "A container's name is not empty and has no “/”.", "name"));
    try {
      await swift("PUT", `${user.account}/${encodeURIComponent(name)}`);
      setName("");
      setError(null);
      list.again();
    } catch (failed) { fail(failed); }
  };
  const remove = async (container: string) => {
    setRemoving(null);
    try {
      await swift("DELETE", `${user.account}/${encodeURIComponent(container)}`);
      list.again();
    } catch (failed) {
      fail(failed instanceof Refused && failed.status === 409 ? new Refused(409, `“${container}” is not empty: delete its objects first.`, null) : failed);
    }
  };
  if (list.error?.field === "store") fail(list.error);
  const about = list.data?.about;
  return (
    <>
      <ErrorBox error={error ?? list.error} />
      <form class="row" onSubmit={make}>
        <input aria-label="Name of a new container" placeholder="New container" value={name} onInput={(event) => setName(event.currentTarget.value)} />
        <button type="submit">Make it</button>
        <span class="spacer" />
        {about && <span class="muted small">{plural(about.containers, "container")}, {plural(about.objects, "object")}, {bytes(about.bytes)}</span>}
      </form>
      {list.data && (list.data.found.length === 0 && !marker ? <p class="card muted empty">No container yet: make the first one above.</p> : (
        <TableFrame label="Containers">
          <table>
            <thead><tr><th scope="col">Container</th><th scope="col" class="n">Objects</th><th scope="col" class="n">Size</th><th scope="col" class="opt">Changed</th><th scope="col"><span class="visually-hidden">Delete</span></th></tr></thead>
            <tbody>
              {list.data.found.map((c) => (
                <tr key={c.name}>
                  <td class="first"><a href={`#/objects/${encodeURIComponent(c.name)}`}><bdi>{shownName(c.name)}</bdi></a></td><td class="n">{count(c.count)}</td><td class="n">{bytes(c.bytes)}</td><td class="opt">{c.last_modified ? time(Date.parse(c.last_modified + "Z")) : ""}</td>
                  <td><button type="button" class="quiet" aria-label={`Delete the container ${shownName(c.name)}`} title="Delete" onClick={() => setRemoving(c.name)}>✕</button></td>
                </tr>
              ))}
            </tbody>
          </table>
        </TableFrame>
      ))}
      <Pager marker={marker} setMarker={setMarker} next={list.data && list.data.found.length === PAGE ? list.data.found.at(-1)!.name : null} />
      {removing !== null && <Confirm title={`Delete the container “${shownName(removing)}”?`} text="It must be empty." action="Delete it" onNo={() => setRemoving(null)} onYes={() => remove(removing)} />}
    </>
  );
}

interface Row { name?: string; subdir?: string; bytes?: number; content_type?: string; last_modified?: string; hash?: string }
interface Upload { name: string; part: number; error?: string; done?: boolean }

function Container({ user, container, prefix, reload }: { user: StoreUser; container: string; prefix: string; reload: () => Promise<void> }) {
  const { error, fail } = useStore(reload);
  const [marker, setMarker] = useState("");
  const [search, setSearch] = useState("");
  const [chosen, setChosen] = useState<string[]>([]);
  /** Objects that are to be deleted: asked for, then under way. */
  const [removing, setRemoving] = useState<string[]>([]);
  const [left, setLeft] = useState<number | null>(null);
  const [uploads, setUploads] = useState<Upload[]>([]);
  const [over, setOver] = useState(false);
  const [order, setOrder] = useState<Order>(AS_LISTED);
  const [shown, setShown] = useState(PAGE);
  const [looked, setLooked] = useState<string | null>(null);
  const isSorted = order.by !== "name" || order.falling;
  const abort = useRef<AbortController | null>(null);
  const picker = useRef<HTMLInputElement>(null);
  const base = `${user.account}/${encodeURIComponent(container)}`;
  const pathOf = (name: string) => `${base}/${name.split("/").map(encodeURIComponent).join("/")}`;
  const list = useLoad(async () => {
    const response = await swift("GET", base, { format: "json", delimiter: "/", limit: String(isSorted ? SORTED_MAX : PAGE), ...(prefix + search && { prefix: prefix + search }), ...(marker && { marker }) });
    return response.status === 204 ? [] : ((await response.json()) as Row[]);
  }, [base, prefix, search, marker, isSorted]);
  if (list.error?.field === "store") fail(list.error);
  const busy = uploads.some((u) => !u.done && !u.error);

  const send = async (files: FileList | null | undefined) => {
    if (!files || files.length === 0 || busy) return;
    const chosen = [...files];
    const cancel = new AbortController();
    abort.current = cancel;
    setUploads(chosen.map((file) => ({ name: file.name, part: 0 })));
    const tell = (place: number, news: Partial<Upload>) => setUploads((all) => all.map((u, n) => (n === place ? { ...u, ...news } : u)));
    for (const [place, file] of chosen.entries()) {
      try {
        if (cancel.signal.aborted) throw new Refused(0, "cancelled", null);
        await upload(pathOf(prefix + file.name), file, (part) => tell(place, { part }), cancel.signal);
        tell(place, { part: 1, done: true });
      } catch (failed) {
        tell(place, { error: messageOf(failed) });
      }
    }
    abort.current = null;
    list.again();
  };
  const remove = async (names: string[]) => {
    setRemoving([]);
    try {
      for (const [place, name] of names.entries()) {
        setLeft(names.length - place);
        await swift("DELETE", pathOf(name)).catch((failed) => {
          // What somebody else has deleted is gone all the same.
          if (!(failed instanceof Refused && failed.status === 404)) throw failed;
        });
        setChosen((all) => all.filter((one) => one !== name));
      }
    } catch (failed) { fail(failed); }
    setLeft(null);
    list.again();
  };
  const sort = (by: Column) => {
    setOrder(by === order.by ? { by, falling: !order.falling } : { by, falling: by !== "name" });
    setMarker("");
    setShown(PAGE);
    setChosen([]);
  };
  const sorted = useMemo(() => {
    const rows = [...(list.data ?? [])];
    if (!isSorted) return rows;
    const up = ORDERS[order.by];
    return rows.sort((a, b) => (order.falling ? up(b, a) : up(a, b)));
  }, [list.data, order]);
  const rows = sorted.slice(0, isSorted ? shown : PAGE);
  const objects = rows.flatMap((row) => (row.name === undefined ? [] : [row.name]));
  const here = chosen.filter((name) => objects.includes(name));
  const crumbs = prefix.split("/").filter(Boolean);
  const link = (to: string) => `#/objects/${encodeURIComponent(container)}${to ? `?prefix=${encodeURIComponent(to)}` : ""}`;
  const last = list.data?.at(-1);
  return (
    <>
      <p class="crumbs"><a href="#/objects">Containers</a> / <a href={link("")}><bdi>{shownName(container)}</bdi></a>{crumbs.map((crumb, n) => <span key={n}> / <a href={link(crumbs.slice(0, n + 1).join("/") + "/")}><bdi>{shownName(crumb)}</bdi></a></span>)}</p>
      <ErrorBox error={error ?? list.error} />
      <div class={`drop ${over ? "over" : ""}`} onDragOver={(event) => { event.preventDefault(); setOver(true); }} onDragLeave={() => setOver(false)} onDrop={(event) => { event.preventDefault(); setOver(false); void send(event.dataTransfer?.files); }}>
        <input ref={picker} type="file" multiple class="visually-hidden" id="upload" tabIndex={-1} aria-label="Files to upload" onChange={(event) => { void send(event.currentTarget.files); event.currentTarget.value = ""; }} />
        <button type="button" class="primary" disabled={busy} onClick={() => picker.current?.click()}>Upload files</button>
        <span class="muted small">or drop them here{prefix ? `; they go below ${shownName(prefix)}` : ""}</span>
      </div>
      {uploads.length > 0 && (
        <section class="card" aria-label="Uploads">
          {uploads.slice(0, 50).map((u) => (
            <div key={u.name} class="upload">
              <bdi class="grow clip">{shownName(u.name)}</bdi>
              {u.error ? <span class="bad-text small">{u.error}</span> : u.done ? <span class="badge done">uploaded</span> : <Progress part={u.part} label={`Upload of ${u.name}`} />}
            </div>
          ))}
          <div class="buttons end">
            {busy ? <button type="button" onClick={() => abort.current?.abort()}>Cancel</button> : <button type="button" onClick={() => setUploads([])}>Close</button>}
          </div>
        </section>
      )}
      <div class="row">
        <input type="search" aria-label="Names that begin with" placeholder="Begins with…" value={search} onInput={(event) => { setSearch(event.currentTarget.value); setMarker(""); setChosen([]); }} />
        <span class="spacer" />
        {left !== null ? <span class="muted" role="status">{plural(left, "object")} left to delete…</span>
          : <button type="button" class="danger" disabled={here.length === 0} onClick={() => setRemoving(here)}>Delete {plural(here.length, "object")}</button>}
      </div>
      {list.data && (list.data.length === 0 && !marker ? <p class="card muted empty">{search ? "No name begins so." : "Nothing here yet."}</p> : (
        <>
        {isSorted && list.data.length >= SORTED_MAX && <p class="notice small">Only the first {count(SORTED_MAX)} names were sorted; “Begins with” narrows them down.</p>}
        <TableFrame label={`Objects of ${container}`}>
          <table>
            <thead><tr><th scope="col"><input type="checkbox" aria-label="Choose all that are shown" disabled={objects.length === 0} checked={objects.length > 0 && here.length === objects.length} onChange={(event) => setChosen(event.currentTarget.checked ? objects : [])} /></th><SortHead by="name" title="Name" order={order} sort={sort} /><SortHead by="bytes" title="Size" kind="n" order={order} sort={sort} /><SortHead by="content_type" title="Type" kind="opt" order={order} sort={sort} /><SortHead by="last_modified" title="Changed" kind="opt" order={order} sort={sort} /><th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
            <tbody>
              {rows.map((row) => row.subdir !== undefined ? (
                <tr key={row.subdir}><td /><td class="first"><a href={link(row.subdir)}><bdi>{shownName(row.subdir.slice(prefix.length))}</bdi></a></td><td class="n">–</td><td class="muted opt">folder</td><td class="opt" /><td /></tr>
              ) : (
                <tr key={row.name}>
                  <td><input type="checkbox" aria-label={`Choose ${shownName(row.name!)}`} checked={here.includes(row.name!)} onChange={(event) => { const name = row.name!; const on = event.currentTarget.checked; setChosen((all) => (on ? [...all, name] : all.filter((one) => one !== name))); }} /></td>
                  <td class="first"><a href={"/swift" + pathOf(row.name!)} download title={`MD5 ${row.hash ?? ""}`}><bdi>{shownName(row.name!.slice(prefix.length))}</bdi></a></td>
                  <td class="n">{bytes(row.bytes ?? 0)}</td><td class="muted clip opt">{row.content_type}</td><td class="opt">{row.last_modified ? time(Date.parse(row.last_modified + "Z")) : ""}</td>
                  <td class="n"><button type="button" class="quiet" aria-label={`Metadata of ${shownName(row.name!)}`} title="Metadata" onClick={() => setLooked(row.name!)}>ⓘ</button><button type="button" class="quiet" aria-label={`Delete ${shownName(row.name!)}`} title="Delete" onClick={() => setRemoving([row.name!])}>✕</button></td>
                </tr>
              ))}
            </tbody>
          </table>
        </TableFrame>
        </>
      ))}
      {isSorted ? sorted.length > rows.length && <div class="buttons"><button type="button" onClick={() => setShown(shown + PAGE)}>Show more</button></div>
        : <Pager marker={marker} setMarker={setMarker} next={list.data && list.data.length === PAGE ? (last?.name ?? last?.subdir ?? null) : null} />}
      {looked !== null && <Metadata name={looked} path={pathOf(looked)} onClose={() => setLooked(null)} fail={fail} />}
      {removing.length > 0 && (
        <Confirm
          title={removing.length === 1 ? `Delete “${shownName(removing[0]!)}”?` : `Delete ${plural(removing.length, "object")}?`}
          text="This cannot be undone." action={removing.length === 1 ? "Delete it" : "Delete them"}
          onNo={() => setRemoving([])} onYes={() => remove(removing)}
        />
      )}
    </>
  );
}

/** A column's head, by which the rows are sorted. */
function SortHead({ by, title, kind, order, sort }: { by: Column; title: string; kind?: string; order: Order; sort: (by: Column) => void }) {
  const isThis = order.by === by;
  return (
    <th scope="col" class={kind} aria-sort={isThis ? (order.falling ? "descending" : "ascending") : "none"}>
      <button type="button" class="link" onClick={() => sort(by)}>{title}{isThis ? (order.falling ? " ↓" : " ↑") : ""}</button>
    </th>
  );
}

/** Headers of an object that are no part of how it was sent. */
const OF_AN_ANSWER = new Set(["cache-control", "date", "connection", "keep-alive", "transfer-encoding", "accept-ranges", "content-disposition", "x-trans-id", "x-openstack-request-id"]);
const OF_THE_CONSOLE = ["content-security-policy", "x-content-type-options", "x-frame-options", "referrer-policy", "cross-origin-", "permissions-policy"];

/** What the store keeps with an object: its own headers, and those that its owner gave it. */
function Metadata({ name, path, onClose, fail }: { name: string; path: string; onClose: () => void; fail: (error: unknown) => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const { data, error } = useLoad(async () => {
    const headers: [string, string][] = [];
    (await swift("HEAD", path)).headers.forEach((value, key) => headers.push([key, value]));
    return headers.filter(([key]) => !OF_AN_ANSWER.has(key) && !OF_THE_CONSOLE.some((start) => key.startsWith(start)));
  }, [path]);
  useEffect(() => dialog.current?.showModal(), []);
  if (error?.field === "store") fail(error);
  const isOwn = ([key]: [string, string]) => key.startsWith("x-object-meta-");
  const table = (rows: [string, string][]) => <dl class="facts">{rows.map(([key, value]) => <div key={key}><dt>{key}</dt><dd><bdi>{shownName(value)}</bdi></dd></div>)}</dl>;
  return (
    <dialog ref={dialog} onCancel={onClose} aria-labelledby="metadata-title">
      <h2 id="metadata-title"><bdi>{shownName(name)}</bdi></h2>
      <ErrorBox error={error} />
      {data && table(data.filter((row) => !isOwn(row)))}
      {data && <h3>Metadata of its owner</h3>}
      {data && (data.some(isOwn) ? table(data.filter(isOwn)) : <p class="muted">None.</p>)}
      <div class="buttons end"><button type="button" onClick={onClose}>Close</button></div>
    </dialog>
  );
}

function Pager({ marker, setMarker, next }: { marker: string; setMarker: (marker: string) => void; next: string | null }) {
  if (!marker && !next) return null;
  return (
    <div class="buttons">
      {marker && <button type="button" onClick={() => setMarker("")}>First page</button>}
      {next && <button type="button" onClick={() => setMarker(next)}>Next page</button>}
    </div>
  );
}
