// Signing in to the console.

import { useState } from "preact/hooks";
import { call } from "./api";
import { Field, messageOf } from "./parts";

export function Login({ onDone }: { onDone: () => void }) {
  const [password, setPassword] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await call("POST", "/api/session", { password: password.trim() });
      onDone();
    } catch (failed) {
      setError(messageOf(failed));
      setBusy(false);
    }
  };
  return (
    <main class="alone">
      <form class="card login" onSubmit={submit}>
        <h1 class="brand"><img src="/icon.svg" alt="" width="36" height="36" /> Cairn</h1>
        <p class="muted">Measure object stores, see what they do.</p>
        <Field id="password" label="Password" error={error} hint="It was printed where this console was started.">
          <input id="password" type="password" autocomplete="current-password" autofocus required value={password} aria-describedby={error ? "password-error" : "password-hint"} onInput={(event) => setPassword(event.currentTarget.value)} />
        </Field>
        <button type="submit" class="primary" disabled={busy}>Sign in</button>
      </form>
    </main>
  );
}
