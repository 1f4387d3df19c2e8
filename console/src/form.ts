// A workload file from a form: COSBench XML, which the lab reads and COSBench as well. Every round
// of the form is a workstage of its own, one per number of workers.

export interface Form {
  name: string;
  /** `64KB`, or a range `4KB-1MB`. */
  size: string;
  containers: number;
  objects: number;
  read: number;
  write: number;
  remove: number;
  /** `8`, or several: `1, 8, 64`. */
  workers: string;
  rampup: number;
  runtime: number;
  hashcheck: boolean;
  cleanup: boolean;
}

export const EMPTY: Form = {
  name: "my workload",
  size: "64KB",
  containers: 4,
  objects: 100,
  read: 80,
  write: 20,
  remove: 0,
  workers: "8",
  rampup: 5,
  runtime: 30,
  hashcheck: false,
  cleanup: true,
};

export type Problem = { field: keyof Form; message: string };

/** Of a run's name, as the server takes it. */
const NAME_BYTES = 200;

const SIZE = /^(\d+)\s*(B|KB|MB|GB)$/i;

/** `c(64)KB`, `u(4,1024)KB`; null where the text is no size. */
export function sizeSelector(text: string): string | null {
  const parts = text.split("-").map((part) => SIZE.exec(part.trim()));
  const [low, high] = parts;
  if (!low || parts.length > 2 || (parts.length === 2 && !high)) return null;
  const units = ["B", "KB", "MB", "GB"];
  const unit = low[2]!.toUpperCase();
  if (!high) return `c(${low[1]})${unit}`;
  const factor = 1000 ** (units.indexOf(high[2]!.toUpperCase()) - units.indexOf(unit));
  const top = Number(high[1]) * factor;
  if (!Number.isInteger(top) || top < Number(low[1])) return null;
  return `u(${low[1]},${top})${unit}`;
}

export function problems(form: Form): Problem[] {
  const found: Problem[] = [];
  const say = (field: keyof Form, message: string) => found.push({ field, message });
  const whole = (field: keyof Form, low: number, high: number) => {
    const value = form[field] as number;
    if (!Number.isInteger(value) || value < low || value > high) say(field, `Expected a whole number from ${low} to ${high}.`);
  };
  if (!form.name.trim()) say("name", "Expected a name.");
  if (new TextEncoder().encode(form.name).length > NAME_BYTES) say("name", `Expected at most ${NAME_BYTES} bytes.`);
  if (!sizeSelector(form.size)) say("size", "Expected a size such as 64KB, or a range such as 4KB-1MB.");
  whole("containers", 1, 100_000);
  whole("objects", 1, 10_000_000);
  for (const field of ["read", "write", "remove"] as const) whole(field, 0, 100);
  if (form.read + form.write + form.remove !== 100) say("read", "Reads, writes and deletes must sum up to 100 %.");
  const workers = workerCounts(form.workers);
  if (!workers) say("workers", "Expected a number from 1 to 10000, or several: 1, 8, 64.");
  whole("rampup", 0, 86_400);
  whole("runtime", 1, 604_800);
  return found;
}

function workerCounts(text: string): number[] | null {
  const counts = text.split(/[\s,]+/).filter(Boolean).map(Number);
  const good = counts.length > 0 && counts.length <= 50 && counts.every((n) => Number.isInteger(n) && n >= 1 && n <= 10_000);
  return good ? counts : null;
}

const escaped = (text: string) =>
  text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");

/** The workload; `form` has no problems. */
export function workload(form: Form): string {
  const sizes = sizeSelector(form.size) ?? "c(64)KB";
  const counts = workerCounts(form.workers) ?? [8];
  const prefix = form.name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "lab";
  const most = Math.max(...counts);
  const containers = `r(1,${form.containers})`;
  const lines = [
    `<?xml version="1.0" encoding="UTF-8"?>`,
    `<workload name="${escaped(form.name.trim())}" description="made with the console's form" config="cprefix=${prefix}-">`,
    `  <workflow>`,
    `    <workstage name="init">`,
    `      <work type="init" workers="1" config="containers=${containers}" />`,
    `    </workstage>`,
    `    <workstage name="prepare">`,
    `      <work type="prepare" workers="${most}" config="containers=${containers};objects=r(1,${form.objects});sizes=${sizes}${form.hashcheck ? ";hashCheck=true" : ""}" />`,
    `    </workstage>`,
  ];
  const draw = `containers=u(1,${form.containers})`;
  const [first, last] = [form.objects + 1, form.objects * 2];
  for (const workers of counts) {
    lines.push(`    <workstage name="main-${workers}">`);
    lines.push(`      <work name="main" workers="${workers}" rampup="${form.rampup}" runtime="${form.runtime}" interval="${form.runtime > 600 ? 5 : 1}">`);
    const check = form.hashcheck ? ";hashCheck=true" : "";
    if (form.read) lines.push(`        <operation type="read" ratio="${form.read}" config="${draw};objects=u(1,${form.objects})${check}" />`);
    if (form.write) lines.push(`        <operation type="write" ratio="${form.write}" config="${draw};objects=u(${first},${last});sizes=${sizes}${check}" />`);
    if (form.remove) lines.push(`        <operation type="delete" ratio="${form.remove}" config="${draw};objects=u(${first},${last})" />`);
    lines.push(`      </work>`, `    </workstage>`);
  }
  if (form.cleanup) {
    lines.push(
      `    <workstage name="cleanup">`,
      `      <work type="cleanup" workers="${most}" config="containers=${containers};objects=r(1,${last})" />`,
      `    </workstage>`,
      `    <workstage name="dispose">`,
      `      <work type="dispose" workers="1" config="containers=${containers}" />`,
      `    </workstage>`,
    );
  }
  lines.push(`  </workflow>`, `</workload>`, ``);
  return lines.join("\n");
}
