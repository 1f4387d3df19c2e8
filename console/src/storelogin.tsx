// Signing in to the store, as a user of it: its account's content is seen and used as that user.

import { useState } from "preact/hooks";
import { call, type StoreAbout } from "./api";
import { Field, messageOf } from "./parts";

export function StoreLogin({ store, onDone }: { store: StoreAbout; onDone: () => Promise<void> }) {
  const [user, setUser] = useState("");
  const [key, setKey] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await call("POST", "/api/store/user", { user: user.trim(), key });
      await onDone();
    } catch (failed) {
      setError(messageOf(failed));
    }
    setBusy(false);
  };
  return (
    <form onSubmit={submit} class="narrow">
      <h2>Sign in to the store</h2>
      <p class="muted">As a user of <code>{store.endpoint}</code>; its users were printed when it was started.</p>
      <Field id="store-user" label="User" hint="account:user, for example test:tester">
        <input id="store-user" autocapitalize="off" spellcheck={false} autocomplete="username" required value={user} onInput={(event) => setUser(event.currentTarget.value)} />
      </Field>
      <Field id="store-key" label="Key" error={error}>
        <input id="store-key" type="password" autocomplete="current-password" required value={key} onInput={(event) => setKey(event.currentTarget.value)} />
      </Field>
      <button type="submit" class="primary" disabled={busy}>Sign in to the store</button>
    </form>
  );
}
