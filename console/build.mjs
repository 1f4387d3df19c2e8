// Builds dist/ from src/: `npm run build`. What it makes is committed, so that cargo alone builds
// the binary; `node build.mjs --check` says whether dist/ is what src/ makes now.
import { build } from "esbuild";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const jsx = { jsx: "automatic", jsxImportSource: "preact" };

if (process.argv.includes("--tests")) {
  await build({
    entryPoints: [here + "src/format.test.ts", here + "src/series.test.ts", here + "src/form.test.ts", here + "src/compare.test.ts", here + "src/recon.test.ts"],
    outdir: here + ".tests",
    bundle: true,
    platform: "node",
    format: "esm",
    outExtension: { ".js": ".test.mjs" },
    ...jsx,
  });
  process.exit(0);
}

const made = await build({
  entryPoints: [here + "src/console.tsx", here + "src/console.css"],
  outdir: here + "dist",
  bundle: true,
  minify: true,
  target: ["es2022"],
  legalComments: "none",
  charset: "utf8",
  write: false,
  ...jsx,
});
const files = made.outputFiles.map((file) => [file.path, file.text]);
for (const name of ["index.html", "icon.svg"]) {
  files.push([here + "dist/" + name, await readFile(here + "src/" + name, "utf8")]);
}
if (process.argv.includes("--check")) {
  const old = [];
  for (const [path, text] of files) {
    const there = await readFile(path, "utf8").catch(() => "");
    if (there !== text) old.push(path);
  }
  if (old.length > 0) {
    console.error(`not what src/ makes: ${old.join(", ")}\nrun: npm run build, and commit dist/`);
    process.exit(1);
  }
} else {
  await mkdir(here + "dist", { recursive: true });
  for (const [path, text] of files) await writeFile(path, text);
  for (const [path, text] of files) console.log(path.slice(here.length), text.length);
}
