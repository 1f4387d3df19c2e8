// The console's page: who is signed in, which part is shown, light or dark.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { call, get, whenSignedOut, type Session } from "./api";
import { Compare } from "./compare";
import { Login } from "./login";
import { ObjectsPage } from "./objects";
import { RunPage } from "./run";
import { Runs } from "./runs";
import { StorePage } from "./store";
import { SubmitPage } from "./submit";
import { ErrorBox, go } from "./parts";

type Theme = "auto" | "light" | "dark";
const THEMES: Theme[] = ["auto", "light", "dark"];

function App() {
  const [session, setSession] = useState<Session | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [place, setPlace] = useState(readPlace);
  const load = () => get<Session>("/api/session").then((s) => (setSession(s), setError(null)), setError);
  useEffect(() => {
    whenSignedOut(() => setSession({ signed_in: false }));
    void load();
    const moved = () => setPlace(readPlace());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  if (!session) return <main class="alone">{error ? <ErrorBox error={error} /> : null}</main>;
  if (!session.signed_in) return <Login onDone={load} />;
  return <Shell session={session} place={place} reload={load} />;
}

interface Place {
  path: string[];
  query: URLSearchParams;
}

function readPlace(): Place {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").map((part) => decodeURIComponent(part)), query: new URLSearchParams(query) };
}

function Shell({ session, place, reload }: { session: Session; place: Place; reload: () => Promise<void> }) {
  const [theme, setTheme] = useTheme();
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  const [page = "runs", ...rest] = place.path;
  useEffect(() => {
    // Who uses a keyboard or a reader is brought to the new page's start.
    if (!first.current) main.current?.focus({ preventScroll: true });
    first.current = false;
    scrollTo(0, 0);
  }, [place.path.slice(0, 2).join("/")]);
  const links: [string, string][] = [["runs", "Runs"], ["new", "New run"], ["compare", "Compare"]];
  if (session.store) links.push(["store", "Store"], ["objects", "Objects"]);
  const current = page === "run" || page === "" ? "runs" : page;
  const signOut = () => call("DELETE", "/api/session").finally(() => { go("/"); void reload(); });
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to the content</a>
      <header class="top">
        <a class="brand" href="#/runs"><img src="/icon.svg" alt="" width="24" height="24" /> Cairn</a>
        <nav aria-label="Parts of the console">
          {links.map(([path, name]) => (
            <a key={path} href={`#/${path}`} aria-current={path === current ? "page" : undefined}>{name}</a>
          ))}
        </nav>
        <div class="top-end">
          <button type="button" class="quiet" onClick={() => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % 3]!)} title="Light, dark, or as the system has it" aria-label={`Colours: ${theme}`}>
            <span aria-hidden="true">{theme === "auto" ? "◐" : theme === "light" ? "☀" : "☾"}</span>
          </button>
          <button type="button" class="quiet" onClick={signOut}>Sign out</button>
        </div>
      </header>
      <main ref={main} id="main" tabIndex={-1}>
        {page === "new" ? <SubmitPage key={place.query.get("again") ?? ""} session={session} again={place.query.get("again")} reload={reload} />
          : page === "run" && rest[0] ? <RunPage key={rest[0]} id={rest[0]} />
          : page === "compare" ? <Compare a={place.query.get("a")} b={place.query.get("b")} />
          : page === "store" && session.store ? <StorePage />
          : page === "objects" && session.store ? <ObjectsPage store={session.store} path={rest} prefix={place.query.get("prefix") ?? ""} reload={reload} />
          : <Runs />}
      </main>
      <footer class="muted small">
        Cairn {session.version} · runs are kept in <code>{session.runs}</code>
      </footer>
    </>
  );
}

function useTheme(): [Theme, (theme: Theme) => void] {
  const [theme, setTheme] = useState<Theme>(() => {
    const kept = localStorage.getItem("theme");
    return kept === "light" || kept === "dark" ? kept : "auto";
  });
  useEffect(() => {
    if (theme === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", theme);
    localStorage.setItem("theme", theme);
  }, [theme]);
  return [theme, setTheme];
}

const kept = localStorage.getItem("theme");
if (kept === "light" || kept === "dark") document.documentElement.setAttribute("data-theme", kept);
const root = document.getElementById("app");
if (root) render(<App />, root);
