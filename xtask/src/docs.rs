//! Tests of the documentation's examples: the blocks of a page that are marked as tested are run in
//! order in one shell, against a new store. The format is described at the top of `docs/README.md`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::report::Report;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace::{self, install};

#[derive(Args, Default)]
pub(crate) struct Options {
    /// Pages by name, `large-objects` or `docs/large-objects.md` (all of them by default)
    pages: Vec<String>,
}

/// Timeout of a page.
const PAGE_TIMEOUT_SECONDS: &str = "300";
const MARK: &str = "@@example:";
/// Maximum bytes shown of a failed page's output.
const OUTPUT_SHOWN_BYTES: usize = 4000;

pub(crate) fn run(options: &Options) -> Result<Report> {
    let binary = workspace::build_cairn()?;
    let dir = workspace::scratch("docs")?;
    let mut report = Report::default();
    for program in ["curl", "bzip2"] {
        if !install(program, program) {
            report.skip(
                "examples of the documentation",
                &format!("{program} is not installed"),
            );
            return Ok(report);
        }
    }
    for page in pages(&options.pages)? {
        let text = std::fs::read_to_string(&page)
            .with_context(|| format!("reading {}", page.display()))?;
        let name = page.file_stem().unwrap_or_default().to_string_lossy();
        let parsed = Page::parse(&text);
        if parsed.is_none() && options.pages.is_empty() {
            continue;
        }
        report.check(&format!("examples of docs/{name}.md"), || {
            let parsed = parsed.context("no block is marked as tested")?;
            parsed.run(&binary, &dir.path().join(&*name))
        });
    }
    Ok(report)
}

fn pages(named: &[String]) -> Result<Vec<PathBuf>> {
    let docs = workspace::root().join("docs");
    if named.is_empty() {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&docs)? {
            let path = entry?.path();
            // The description of the format contains a nested example.
            let is_page = path.extension().is_some_and(|e| e == "md")
                && path.file_name().is_some_and(|n| n != "README.md");
            if is_page {
                all.push(path);
            }
        }
        all.sort();
        return Ok(all);
    }
    let path = |name: &String| {
        let name = Path::new(name).file_stem().unwrap_or_default();
        docs.join(name).with_extension("md")
    };
    Ok(named.iter().map(path).collect())
}

/// The executable parts of a page.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    /// Sections, options and values for the proxy's conf.
    options: Vec<(String, String, String)>,
    script: String,
    /// Texts required after the n-th mark in the output (none: before the first).
    expected: Vec<Vec<String>>,
}

impl Page {
    /// `None` if no block is marked.
    fn parse(text: &str) -> Option<Page> {
        let mut page = Page::default();
        let mut lines = text.lines().enumerate();
        let mut found = false;
        while let Some((_, line)) = lines.next() {
            let Some(info) = line.strip_prefix("```") else {
                continue;
            };
            // A longer fence contains shorter ones.
            let fence = if info.starts_with('`') { "````" } else { "```" };
            let block: Vec<(usize, &str)> = lines
                .by_ref()
                .take_while(|(_, line)| line.trim_end() != fence)
                .collect();
            match info.trim() {
                "sh test" => page.add_commands(&block),
                "ini test" => page.add_options(&block),
                _ => continue,
            }
            found = true;
        }
        found.then_some(page)
    }

    fn add_commands(&mut self, block: &[(usize, &str)]) {
        let mut texts = Vec::new();
        for (_, line) in block {
            if let Some(text) = line.trim_start().strip_prefix("# =>") {
                texts.push(text.trim().to_owned());
                continue;
            }
            self.expect(&mut texts);
            self.script.push_str(line);
            self.script.push('\n');
        }
        self.expect(&mut texts);
    }

    fn expect(&mut self, texts: &mut Vec<String>) {
        if texts.is_empty() {
            return;
        }
        let number = self.expected.len();
        self.script.push_str(&format!("echo '{MARK}{number}@@'\n"));
        self.expected.push(std::mem::take(texts));
    }

    fn add_options(&mut self, block: &[(usize, &str)]) {
        let mut section = String::new();
        for (_, line) in block {
            let line = line.trim();
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                section = name.to_owned();
            } else if let Some((option, value)) =
                line.split_once('=').filter(|_| !line.starts_with('#'))
            {
                let (option, value) = (option.trim().to_owned(), value.trim().to_owned());
                self.options.push((section.clone(), option, value));
            }
        }
    }

    fn run(&self, binary: &Path, dir: &Path) -> Result<()> {
        let mut store = Cairn::create(binary, &dir.join("data"), None)?;
        for (section, option, value) in &self.options {
            store.set_or_add("proxy", section, option, value)?;
        }
        store.start(Spread::OneProcess)?;
        let result = self.run_script(&store, &dir.join("work"));
        let log = store.log_tail();
        let log: Vec<&str> = log
            .lines()
            .filter(|line| !line.contains(" INFO "))
            .collect();
        store.stop()?;
        result.with_context(|| format!("the store's log:\n{}\n", log.join("\n")))
    }

    fn run_script(&self, store: &Cairn, work: &Path) -> Result<()> {
        std::fs::create_dir_all(work)?;
        let user = Account::login(store.port())?;
        let admin = Account::login_as(store.port(), "admin:admin", "admin")?;
        let script = work.with_extension("sh");
        std::fs::write(&script, format!("exec 2>&1\n{}", self.script))?;
        let output = Command::new("timeout")
            .args([PAGE_TIMEOUT_SECONDS, "bash", "-eu", "-o", "pipefail"])
            .arg(&script)
            .current_dir(work)
            .env("LC_ALL", "C.UTF-8")
            .env("CAIRN_URL", store.url())
            .env("STORAGE_URL", format!("{}{}", store.url(), user.path))
            .env("TOKEN", &user.token)
            .env("ADMIN_TOKEN", &admin.token)
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        self.check(&text)?;
        ensure!(
            output.status.success(),
            "the page ended with {}; its output ends with:\n{}",
            output.status,
            tail(&text)
        );
        Ok(())
    }

    /// Checks that all required texts are in the output, each in its part.
    fn check(&self, output: &str) -> Result<()> {
        let mut rest = output;
        for (number, texts) in self.expected.iter().enumerate() {
            let mark = format!("{MARK}{number}@@\n");
            let Some((part, after)) = rest.split_once(&mark) else {
                bail!(
                    "the page ended early; its output ends with:\n{}",
                    tail(output)
                );
            };
            for text in texts {
                ensure!(
                    part.contains(text),
                    "expected {text:?}, and the commands before it printed:\n{}",
                    tail(part)
                );
            }
            rest = after;
        }
        Ok(())
    }
}

fn tail(text: &str) -> &str {
    let mut start = text.len().saturating_sub(OUTPUT_SHOWN_BYTES);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# Title
```sh
not run
```
```ini test
# a comment
[filter:slo]
max_manifest_segments = 2
```
```sh test
echo a
# => a
# => b
for i in 1 2; do
  echo $i
done
```
````
```sh test
shown only
```
````
```sh test
echo c
  # => c
```
";

    #[test]
    fn what_is_run() {
        let page = Page::parse(PAGE).expect("marked blocks");
        assert_eq!(
            page.script,
            "echo a\necho '@@example:0@@'\nfor i in 1 2; do\n  echo $i\ndone\necho c\n\
             echo '@@example:1@@'\n"
        );
        assert_eq!(page.expected, [vec!["a", "b"], vec!["c"]]);
        let option = ("filter:slo", "max_manifest_segments", "2");
        let (section, name, value) = option;
        assert_eq!(page.options, [(section.into(), name.into(), value.into())]);
        assert_eq!(Page::parse("# Title\n```sh\nx\n```\n"), None);
    }

    #[test]
    fn what_is_expected() {
        let page = Page::parse(PAGE).expect("marked blocks");
        let check = |output: &str| page.check(output).map_err(|e| e.to_string());
        assert_eq!(
            check("a b\n@@example:0@@\n1\n2\nc\n@@example:1@@\n"),
            Ok(())
        );
        let early = check("a b\n@@example:0@@\n1\n").expect_err("ended");
        assert!(early.contains("ended early"), "{early}");
        let other = check("a\n@@example:0@@\nb c\n@@example:1@@\n").expect_err("missing");
        assert!(other.contains("expected \"b\""), "{other}");
    }
}
