// The console in a real browser: `cargo xtask console` starts a store with a console and calls
// this. Told by the environment: CONSOLE_URL, CONSOLE_PASSWORD, STORE_USER, STORE_KEY, CHROMIUM,
// and SHOTS, a folder for pictures of every page in light and dark, wide and narrow.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const { CONSOLE_URL: url, CONSOLE_PASSWORD: password, STORE_USER: user, STORE_KEY: key } = process.env;
const shots = process.env.SHOTS;
const scratch = await mkdir(join(tmpdir(), `console-${process.pid}`), { recursive: true });
if (shots) await mkdir(shots, { recursive: true });

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, acceptDownloads: true });
const page = await context.newPage();
page.setDefaultTimeout(20_000);
const foreign = [];
const complaints = [];
page.on("request", (request) => {
  if (!request.url().startsWith(url) && !/^(blob|data):/.test(request.url())) foreign.push(request.url());
});
page.on("console", (message) => message.type() === "error" && !/status of 4\d\d/.test(message.text()) && complaints.push(message.text()));
page.on("pageerror", (error) => complaints.push(String(error)));

let passed = 0;
let failed = 0;
async function check(name, body) {
  const started = Date.now();
  try {
    await body();
    passed += 1;
    console.log(`ok      ${name} (${((Date.now() - started) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}: ${error.stack ?? error}`);
    if (shots) await page.screenshot({ path: join(shots, `failed-${failed}.png`) }).catch(() => {});
  }
}

const goTo = async (path) => {
  await page.goto(`${url}/#${path}`);
  await page.waitForSelector("main h1");
};
const state = () => page.locator(".page-head .badge").first();
const becomes = async (wanted, seconds) => {
  await page.waitForFunction((text) => document.querySelector(".page-head .badge")?.textContent === text, wanted, { timeout: seconds * 1000 });
};
const workload = (name, seconds) => `<?xml version="1.0" encoding="UTF-8"?>
<workload name="${name}" description="of the browser test" config="cprefix=browser-;interval=1">
  <workflow>
    <workstage name="init"><work type="init" workers="1" config="containers=r(1,2)"/></workstage>
    <workstage name="main"><work name="main" workers="2" interval="1" runtime="${seconds}">
      <operation type="write" ratio="100" config="containers=u(1,2);objects=u(1,50);sizes=c(4)KB"/>
    </work></workstage>
  </workflow>
</workload>
`;

async function paste(name, seconds) {
  await goTo("/new");
  await page.getByLabel("Write or paste").check();
  await page.fill("#text", workload(name, seconds));
  await page.fill("#name", name);
  await page.getByRole("button", { name: "Start the run" }).click();
  await page.waitForURL(/#\/run\//);
  await page.waitForSelector("main h1");
  return decodeURIComponent(page.url().split("#/run/")[1]);
}

await check("a wrong password is refused, the right one signs in; by keys alone", async () => {
  await page.goto(url);
  await page.waitForSelector("#password");
  await page.keyboard.type("not the password");
  await page.keyboard.press("Enter");
  await page.getByText("This is not the console's password.").waitFor();
  await shoot("login");
  await page.fill("#password", "");
  await page.focus("#password");
  await page.keyboard.type(password);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Runs" }).waitFor();
  const cookies = await context.cookies();
  assert.equal(cookies.length, 1);
  assert.ok(cookies[0].httpOnly && cookies[0].sameSite === "Strict", JSON.stringify(cookies[0]));
});

await check("what another page could send is refused", async () => {
  const answer = (headers, method = "POST") => page.evaluate(async ([h, m]) => (await fetch("/api/runs/x/cancel", { method: m, headers: h })).status, [headers, method]);
  assert.equal(await answer({}), 403);
  const outside = await context.request.post(`${url}/api/runs/x/cancel`, { headers: { "X-Cairn-Console": "1", Origin: "http://evil.example" } });
  assert.equal(outside.status(), 403);
  const stranger = await (await browser.newContext()).request.get(`${url}/api/runs`);
  assert.equal(stranger.status(), 401);
});

await check("signing in to the store, with a wrong key first", async () => {
  await goTo("/new");
  await page.fill("#store-user", user);
  await page.fill("#store-key", "wrong");
  await page.getByRole("button", { name: "Sign in to the store" }).click();
  await page.getByText("the store knows no such user with this key").waitFor();
  await page.fill("#store-key", key);
  await page.getByRole("button", { name: "Sign in to the store" }).click();
  await page.getByRole("button", { name: "Start the run" }).waitFor();
});

await check("a form's mistakes are told at their fields", async () => {
  await page.fill("#form-size", "big");
  await page.fill("#form-read", "50");
  await page.getByRole("button", { name: "Start the run" }).click();
  await page.locator("#form-size-error").waitFor();
  await page.locator("#form-read-error").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement?.id), "form-size");
  await shoot("form");
});

await check("what the server refuses of a form is shown, wherever its field is", async () => {
  await goTo("/runs");
  await goTo("/new");
  await page.fill("#form-name", "ü".repeat(101));
  await page.getByRole("button", { name: "Start the run" }).click();
  await page.locator("#form-name-error").waitFor();
  await page.fill("#form-name", "refused");
  for (const [field, where] of [["text", ".notice.bad"], ["file_name", ".notice.bad"], ["name", "#form-name-error"]]) {
    await page.route("**/api/runs", (route) => (route.request().method() === "POST" ? route.fulfill({ status: 400, contentType: "application/json", body: JSON.stringify({ error: `no such ${field}`, field }) }) : route.continue()));
    await page.getByRole("button", { name: "Start the run" }).click();
    await page.locator(where, { hasText: `no such ${field}` }).waitFor({ timeout: 5_000 });
    await page.unroute("**/api/runs");
  }
});

let first = "";
await check("submit by form, watch it live, to its end", async () => {
  await goTo("/runs");
  await goTo("/new");
  await page.fill("#form-name", "browser form");
  await page.fill("#form-size", "1KB-16KB");
  await page.fill("#form-containers", "2");
  await page.fill("#form-objects", "20");
  await page.fill("#form-workers", "2, 4");
  await page.fill("#form-rampup", "0");
  await page.fill("#form-runtime", "5");
  await page.getByRole("button", { name: "Start the run" }).click();
  await page.waitForURL(/#\/run\//);
  first = decodeURIComponent(page.url().split("#/run/")[1]);
  await becomes("running", 20);
  // Live: a rate, and a line that grows.
  await page.waitForFunction(() => /[1-9].*\/s/.test(document.querySelector(".tile dd")?.textContent ?? ""), null, { timeout: 40_000 });
  await page.locator(".chart path.line").first().waitFor({ state: "attached" });
  const length = () => page.evaluate(() => Math.max(0, ...[...document.querySelectorAll(".chart path.line")].map((p) => p.getAttribute("d").length)));
  const before = await length();
  await page.waitForFunction((n) => Math.max(0, ...[...document.querySelectorAll(".chart path.line")].map((p) => p.getAttribute("d").length)) > n, before);
  await page.locator(".strip li.running").waitFor();
  await shoot("live");
  await becomes("done", 90);
  await page.getByRole("heading", { name: "Results" }).waitFor();
  const rows = await page.locator("section[aria-labelledby=results-title] tbody tr").count();
  assert.ok(rows >= 4, `${rows} rows of results`);
  await shoot("run");
});

await check("a plot is zoomed and read, by pointer and by keys", async () => {
  const chart = page.locator("figure.chart", { hasText: "Response times" }).locator("svg");
  await chart.scrollIntoViewIfNeeded();
  const axis = () => chart.locator("text.tick").allTextContents();
  const whole = await axis();
  const box = await chart.boundingBox();
  await page.mouse.move(box.x + box.width * 0.3, box.y + 60);
  await page.locator(".readout").waitFor();
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 60, { steps: 5 });
  await page.mouse.up();
  assert.notDeepEqual(await axis(), whole);
  await page.mouse.move(5, 5);
  await chart.focus();
  await page.keyboard.press("0");
  assert.deepEqual(await axis(), whole);
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  const told = await page.locator("figure.chart", { hasText: "Response times" }).locator("[aria-live]").textContent();
  assert.match(told, /within .*: .*%/);
  await page.keyboard.press("+");
  assert.notDeepEqual(await axis(), whole);
  await page.keyboard.press("Escape");
});

await check("an operation has one colour on every plot", async () => {
  const colours = (title) => page.locator("figure.chart", { hasText: title }).first().evaluate((figure) => Object.fromEntries(
    [...figure.querySelectorAll("button, li")].filter((item) => item.querySelector(".swatch"))
      .map((item) => [item.textContent.trim(), [...item.querySelector(".swatch").classList].find((name) => /^c\d$/.test(name))])));
  const [operations, response, distribution] = [await colours("Operations"), await colours("Response time, p99"), await colours("Response times")];
  assert.ok(Object.keys(distribution).length >= 2, JSON.stringify(distribution));
  assert.deepEqual(operations, response);
  for (const [name, colour] of Object.entries(distribution)) assert.equal(operations[name], colour, `${name}: ${JSON.stringify(operations)}`);
  // Of one stage alone, too.
  const stage = page.locator("section[aria-labelledby=time-title]").getByLabel("Stage");
  const stages = await stage.locator("option").allTextContents();
  await stage.selectOption(stages.at(-2));
  for (const [name, colour] of Object.entries(await colours("Operations"))) assert.equal(operations[name], colour, name);
  await stage.selectOption("");
});

await check("a run gets another name and tags, and is found by them", async () => {
  await page.getByRole("button", { name: "Name and tags" }).click();
  await page.fill("#rename-name", "");
  await page.getByRole("button", { name: "Save" }).click();
  await page.locator("#rename-name-error").waitFor();
  await page.fill("#rename-name", "renamed form");
  await page.fill("#rename-tags", "hdd, monday");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("heading", { name: "renamed form" }).waitFor();
  assert.deepEqual(await page.locator(".marks .tag").allTextContents(), ["hdd", "monday"]);
  await goTo("/runs");
  await page.fill("input[aria-label='Filter the history']", "monday");
  await page.getByRole("link", { name: "renamed form" }).waitFor();
  assert.equal(await page.locator("section[aria-labelledby=history-title] tbody tr").count(), 1);
  await page.getByRole("button", { name: "Name and tags of renamed form" }).click();
  await page.fill("#rename-name", "browser form");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("link", { name: "browser form" }).waitFor();
  await page.fill("input[aria-label='Filter the history']", "");
  await goTo(`/run/${encodeURIComponent(first)}`);
  await page.getByRole("heading", { name: "Files" }).waitFor();
});

await check("a run's files are downloaded, one and all", async () => {
  const save = async (link) => {
    const [download] = await Promise.all([page.waitForEvent("download"), link.click()]);
    return readFile(await download.path());
  };
  const stages = JSON.parse(await save(page.getByRole("link", { name: "stages.json", exact: true })));
  assert.ok(stages.length >= 4);
  const tar = await save(page.getByRole("link", { name: "Download all (.tar)" }));
  assert.equal(tar.length % 512, 0);
  assert.ok(tar.includes(`${first}/run.json`) && tar.includes(`${first}/timeline.ndjson`));
});

await check("a workload with a mistake is refused where it is", async () => {
  await goTo("/new");
  await page.getByLabel("Write or paste").check();
  await page.fill("#text", workload("broken", 5).replace("</work></workstage>\n  </workflow>", "</workstage>\n  </workflow>"));
  await page.getByRole("button", { name: "Start the run" }).click();
  const told = await page.locator("#text-error").textContent();
  assert.match(told, /:7:5: /);
  // The line is marked a moment after it is told.
  await page.waitForFunction((line) => {
    const field = document.activeElement;
    return field instanceof HTMLTextAreaElement && field.value.slice(field.selectionStart, field.selectionEnd) === line;
  }, "    </workstage>", { timeout: 10_000 });
  await shoot("mistake");
});

await check("cancel: one that waits, and the one under way", async () => {
  const long = await paste("long one", 600);
  await becomes("running", 20);
  const waiting = await paste("waits", 5);
  await becomes("waiting", 10);
  await goTo("/runs");
  await page.getByText("number", { exact: false }).first().waitFor();
  await shoot("queue");
  await page.getByRole("button", { name: "Cancel waits" }).click();
  await page.waitForFunction((id) => !document.querySelector(`.queue a[href="#/run/${id}"]`), waiting);
  await goTo(`/run/${long}`);
  await page.waitForFunction(() => /[1-9].*\/s/.test(document.querySelector(".tile dd")?.textContent ?? ""), null, { timeout: 40_000 });
  await page.getByRole("button", { name: "Cancel the run" }).click();
  await becomes("cancelled", 30);
});

let second = "";
await check("upload a workload file", async () => {
  const file = join(scratch, "uploaded.xml");
  await writeFile(file, workload("uploaded", 4));
  await goTo("/new");
  await page.getByLabel("Upload a file").check();
  await page.setInputFiles("#file", file);
  await page.waitForFunction(() => document.querySelector("#text")?.value.includes("uploaded"));
  await page.getByRole("button", { name: "Start the run" }).click();
  await page.waitForURL(/#\/run\//);
  second = decodeURIComponent(page.url().split("#/run/")[1]);
  await becomes("done", 60);
  await page.getByRole("link", { name: "Run again" }).click();
  await page.waitForFunction(() => document.querySelector("#text")?.value.includes("uploaded"));
});

await check("a run in which a tenth failed is over limits, and says so first", async () => {
  await goTo("/new");
  await page.getByLabel("Write or paste").check();
  // Objects that were never written: 404.
  await page.fill("#text", workload("a tenth", 4).replace('ratio="100"', 'ratio="90"').replace("    </work></workstage>\n  </workflow>", `      <operation type="read" ratio="10" config="containers=u(1,2);objects=u(900,999)"/>
    </work></workstage>
  </workflow>`));
  await page.fill("#name", "a tenth");
  await page.getByRole("button", { name: "Start the run" }).click();
  await page.waitForURL(/#\/run\//);
  await becomes("done, over limits", 60);
  const told = page.locator("main [role=alert]").first();
  assert.match(await told.textContent(), /read: failed 100 %, more than 1 %/);
  const isBeforeTables = await told.evaluate((alert) => {
    const table = document.querySelector("main table, main figure");
    return !table || Boolean(alert.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING);
  });
  assert.ok(isBeforeTables, "what happened is not told first");
  await goTo("/runs");
  await page.locator("section[aria-labelledby=history-title] tr", { hasText: "a tenth" }).getByText("done, over limits").waitFor();
});

await check("compare two runs", async () => {
  await goTo("/runs");
  await shoot("runs");
  // The same workload once more is the other run.
  const other = await paste("uploaded again", 4);
  await becomes("done", 60);
  await goTo("/runs");
  await page.getByLabel("Choose uploaded again for a comparison").check();
  await page.getByLabel("Choose uploaded for a comparison", { exact: true }).check();
  await page.getByRole("button", { name: "Compare 2/2" }).click();
  await page.getByRole("heading", { name: "Differences" }).waitFor();
  assert.match(page.url(), new RegExp(`${other}.*${second}|${second}.*${other}`));
  const cells = await page.locator("section[aria-labelledby=differences] tbody td").allTextContents();
  assert.ok(cells.some((text) => /[+−±]\d/.test(text)), cells.join("|"));
  await page.waitForFunction(() => document.querySelectorAll(".chart path.line").length >= 4);
  await page.getByRole("heading", { name: "Verdict" }).waitFor();
  await page.getByText("there is no verdict on 1 repetition").waitFor();
  await shoot("compare");
});

await check("the store's state", async () => {
  await goTo("/store");
  await page.getByText("healthy").waitFor();
  await page.getByRole("heading", { name: "Devices" }).waitFor();
  assert.equal(await page.locator("section[aria-labelledby=devices-title] tbody tr").count(), 4);
  assert.equal(await page.locator("section[aria-labelledby=rings-title] tbody tr").count(), 3);
  await page.waitForFunction(() => document.querySelectorAll(".chart path.line").length >= 2);
  // Background work in words and units: no moment as a number of seconds.
  const recon = page.locator("section[aria-labelledby=recon-title] tbody tr");
  await recon.first().waitFor({ timeout: 60_000 });
  const words = (await recon.allTextContents()).join("\n");
  assert.doesNotMatch(words, /\d{9,}|\d{1,3}(,\d{3}){3,}/);
  await shoot("store");
});

const container = `browser ${process.pid} ü`;
await check("objects: upload, look, download, delete", async () => {
  const bytes = randomBytes(3_000_000);
  const file = join(scratch, "päper & more #1.bin");
  await writeFile(file, bytes);
  const script = join(scratch, "page.html");
  await writeFile(script, "<script>fetch('/api/session',{method:'DELETE',headers:{'X-Cairn-Console':'1'}})</script>");
  await goTo("/objects");
  await page.fill("input[aria-label='Name of a new container']", container);
  await page.getByRole("button", { name: "Make it" }).click();
  await page.getByRole("link", { name: container, exact: true }).click();
  await page.getByText("Nothing here yet.").waitFor();
  await page.setInputFiles("#upload", [file, script]);
  await page.waitForFunction(() => document.querySelectorAll(".upload .badge.done").length === 2, null, { timeout: 60_000 });
  await page.getByRole("link", { name: "päper & more #1.bin" }).waitFor();
  await shoot("objects");
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "päper & more #1.bin" }).click()]);
  assert.equal(download.suggestedFilename(), "päper & more #1.bin");
  assert.ok((await readFile(await download.path())).equals(bytes), "the bytes came back different");
  // A page stored as an object is a download, never a page of the console.
  const stored = await page.evaluate(async (path) => {
    const answer = await fetch(path);
    return [answer.headers.get("content-disposition"), answer.headers.get("content-security-policy")];
  }, await page.getByRole("link", { name: "page.html" }).getAttribute("href"));
  assert.match(stored[0], /^attachment/);
  assert.match(stored[1], /sandbox/);
  // Sorted by size, the largest first, and back.
  const sorted = (names) => page.waitForFunction((wanted) => [...document.querySelectorAll("tbody td.first")].map((cell) => cell.textContent).join("|") === wanted, names.join("|"), { timeout: 5_000 });
  await page.getByRole("button", { name: "Size" }).click();
  await sorted(["päper & more #1.bin", "page.html"]);
  await page.locator("th[aria-sort=descending]").waitFor();
  await page.getByRole("button", { name: "Size" }).click();
  await sorted(["page.html", "päper & more #1.bin"]);
  // What the store keeps with it, its owner's own metadata apart.
  await page.evaluate(async (path) => fetch(path, { method: "POST", headers: { "X-Cairn-Console": "1", "X-Object-Meta-Colour": "blue" } }), await page.getByRole("link", { name: "page.html" }).getAttribute("href"));
  await page.getByRole("button", { name: "Metadata of page.html" }).click();
  const facts = await page.locator("dialog dl.facts").last().textContent();
  assert.match(facts, /x-object-meta-colour\s*blue/);
  assert.match(await page.locator("dialog dl.facts").first().textContent(), /etag/);
  await page.locator("dialog").getByRole("button", { name: "Close" }).click();
  // By what names begin with; then one alone, and several at once.
  await page.fill("input[aria-label='Names that begin with']", "pä");
  await page.getByRole("link", { name: "page.html" }).waitFor({ state: "detached" });
  await page.getByRole("link", { name: "päper & more #1.bin" }).waitFor();
  await page.fill("input[aria-label='Names that begin with']", "");
  await page.getByRole("link", { name: "page.html" }).waitFor();
  await page.getByRole("button", { name: "Delete page.html" }).click();
  await page.getByRole("button", { name: "Delete it" }).click();
  await page.getByRole("link", { name: "page.html" }).waitFor({ state: "detached" });
  // A name that turns its own end around is shown as it is.
  const turned = join(scratch, "photo\u202egnp.exe");
  await writeFile(turned, "no photo");
  await page.setInputFiles("#upload", [script, turned]);
  await page.getByRole("link", { name: "page.html" }).waitFor();
  await page.getByRole("link", { name: "photo⟨U+202E⟩gnp.exe" }).waitFor();
  await page.getByLabel("Choose all that are shown").check();
  await page.getByRole("button", { name: "Delete 3 objects" }).click();
  await page.getByRole("button", { name: "Delete them" }).click();
  await page.getByText("Nothing here yet.").waitFor();
  await goTo("/objects");
  await page.getByRole("button", { name: `Delete the container ${container}` }).click();
  await page.getByRole("button", { name: "Delete it" }).click();
  await page.getByRole("link", { name: container, exact: true }).waitFor({ state: "detached" });
});

await check("no page is wider than a phone", async () => {
  await page.setViewportSize({ width: 360, height: 740 });
  for (const path of ["/runs", "/new", `/run/${first}`, `/compare?a=${first}&b=${second}`, "/store", "/objects"]) {
    await goTo(path);
    await page.waitForTimeout(300);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${path} is ${wide} px too wide`);
  }
  await page.setViewportSize({ width: 1280, height: 900 });
});

await check("every control has a name, and the focus is seen", async () => {
  for (const path of ["/runs", "/new", `/run/${first}`, "/store", "/objects"]) {
    await goTo(path);
    await page.waitForTimeout(200);
    const nameless = await page.evaluate(() => [...document.querySelectorAll("button, a[href], input, select, textarea")]
      .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length || e.title))
      .map((e) => e.outerHTML.slice(0, 80)));
    assert.deepEqual(nameless, [], path);
  }
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(outline, "solid");
});

await check("a run is removed", async () => {
  await goTo("/runs");
  await page.getByRole("button", { name: "Remove waits" }).click();
  await page.getByRole("button", { name: "Remove it" }).click();
  await page.getByRole("link", { name: "waits" }).waitFor({ state: "detached" });
});

await check("signing out ends the session", async () => {
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.waitForSelector("#password");
  assert.equal((await context.request.get(`${url}/api/runs`)).status(), 401);
});

await check("nothing was asked of another host, and the browser did not complain", async () => {
  assert.deepEqual(foreign, []);
  assert.deepEqual(complaints, []);
});

await browser.close();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);

/** A picture of the page as it is, in both colours and both widths. */
async function shoot(name) {
  if (!shots) return;
  for (const [width, height] of [[1280, 900], [390, 844]]) {
    await page.setViewportSize({ width, height });
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await page.waitForTimeout(150);
      await page.screenshot({ path: join(shots, `${name}-${width > 700 ? "wide" : "narrow"}-${colorScheme}.png`), fullPage: true });
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 1280, height: 900 });
}
