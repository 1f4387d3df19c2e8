//! Data that the two sides write, and a model of the expected content.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use cairn_testkit::random::Random;
use cairn_testkit::wire::Account;

pub(crate) struct Object {
    pub(crate) body: Vec<u8>,
    /// Headers, with names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
}

/// Expected objects by container and name.
#[derive(Default)]
pub(crate) struct Model {
    pub(crate) containers: BTreeMap<String, BTreeMap<String, Object>>,
}

const SIZES: [usize; 9] = [0, 1, 100, 4096, 65_535, 65_536, 65_537, 1 << 20, 3_000_001];
const NAMES: [&str; 8] = [
    "plain",
    "with space",
    "a/b/c",
    "ünïcødé/日本語",
    "per%cent%2F",
    "quote'\"<>&",
    "tab\there",
    "😀",
];
const CONTAINERS: [&str; 4] = ["plain", "with space", "cøntäiner", "empty"];

struct Writer<'a> {
    account: &'a mut Account,
    model: &'a mut Model,
    random: Random,
}

/// Writes by OpenStack Swift.
pub(crate) fn write_first(account: &mut Account, model: &mut Model) -> Result<()> {
    let mut writer = Writer {
        account,
        model,
        random: Random::new(1),
    };
    writer
        .account
        .must("POST", "", "", &[("X-Account-Meta-Owner", "swift")], b"")?;
    for container in CONTAINERS {
        writer.container(
            container,
            &[
                ("X-Container-Meta-Color", "blue"),
                ("X-Container-Read", ".r:*"),
            ],
        )?;
    }
    for container in &CONTAINERS[..3] {
        writer.fill(container, "s")?;
    }
    writer.container("going", &[])?;
    writer.remove_container("going")
}

/// Writes by Cairn on top: new objects, and Swift's overwritten, changed and deleted.
pub(crate) fn write_second(account: &mut Account, model: &mut Model) -> Result<()> {
    let mut writer = Writer {
        account,
        model,
        random: Random::new(2),
    };
    writer
        .account
        .must("POST", "", "", &[("X-Account-Meta-Visitor", "cairn")], b"")?;
    writer.container("cairn's own", &[("X-Container-Meta-Maker", "cairn")])?;
    writer.account.must(
        "POST",
        "/plain",
        "",
        &[("X-Container-Meta-Color", "green")],
        b"",
    )?;
    writer.fill("cairn's own", "c")?;
    writer.fill("plain", "c")?;
    writer.change("plain", "s")?;
    writer.change("cøntäiner", "s")?;
    writer.remove_container("empty")
}

/// Writes by OpenStack Swift on top of both.
pub(crate) fn write_third(account: &mut Account, model: &mut Model) -> Result<()> {
    let mut writer = Writer {
        account,
        model,
        random: Random::new(3),
    };
    writer.change("plain", "c")?;
    writer.change("cairn's own", "c")?;
    writer.container("empty", &[("X-Container-Meta-Back", "again")])?;
    writer.fill("empty", "s")
}

impl Writer<'_> {
    fn container(&mut self, name: &str, headers: &[(&str, &str)]) -> Result<()> {
        self.account
            .must("PUT", &format!("/{name}"), "", headers, b"")?;
        self.model
            .containers
            .insert(name.to_owned(), BTreeMap::new());
        Ok(())
    }

    fn remove_container(&mut self, name: &str) -> Result<()> {
        self.account
            .must("DELETE", &format!("/{name}"), "", &[], b"")?;
        self.model.containers.remove(name);
        Ok(())
    }

    fn put(
        &mut self,
        container: &str,
        name: &str,
        size: usize,
        headers: &[(&str, &str)],
    ) -> Result<()> {
        let body = self.random.bytes(size);
        self.account
            .must("PUT", &format!("/{container}/{name}"), "", headers, &body)?;
        let headers = headers
            .iter()
            .map(|(n, v)| (n.to_ascii_lowercase(), (*v).to_owned()))
            .collect();
        self.objects(container)
            .insert(name.to_owned(), Object { body, headers });
        Ok(())
    }

    fn post(&mut self, container: &str, name: &str, headers: &[(&str, &str)]) -> Result<()> {
        self.account
            .must("POST", &format!("/{container}/{name}"), "", headers, b"")?;
        let object = self.objects(container).get_mut(name);
        ensure!(object.is_some(), "{container}/{name} is not in the model");
        if let Some(object) = object {
            // A POST replaces all user metadata and keeps the content type if it gives none.
            object.headers.retain(|header, _| header == "content-type");
            for (header, value) in headers {
                object
                    .headers
                    .insert(header.to_ascii_lowercase(), (*value).to_owned());
            }
        }
        Ok(())
    }

    fn delete(&mut self, container: &str, name: &str) -> Result<()> {
        self.account
            .must("DELETE", &format!("/{container}/{name}"), "", &[], b"")?;
        self.objects(container).remove(name);
        Ok(())
    }

    fn objects(&mut self, container: &str) -> &mut BTreeMap<String, Object> {
        self.model
            .containers
            .entry(container.to_owned())
            .or_default()
    }

    /// Writes every size and every name, with and without metadata; posts to some, deletes some.
    fn fill(&mut self, container: &str, prefix: &str) -> Result<()> {
        for size in SIZES {
            self.put(
                container,
                &format!("{prefix}/size/{size}"),
                size,
                &[("Content-Type", "x/y")],
            )?;
        }
        for name in NAMES {
            let headers = [
                ("Content-Type", "text/plain; charset=UTF-8"),
                ("X-Object-Meta-Name", "välue"),
                ("X-Object-Meta-Second", "2"),
                ("Content-Disposition", "attachment"),
            ];
            self.put(container, &format!("{prefix}/{name}"), 1000, &headers)?;
        }
        for number in 0..12 {
            self.put(
                container,
                &format!("{prefix}/n/{number:02}"),
                10 + number,
                &[],
            )?;
        }
        self.post(
            container,
            &format!("{prefix}/n/00"),
            &[("X-Object-Meta-Posted", "yes")],
        )?;
        let posted = [
            ("Content-Type", "changed/type"),
            ("X-Object-Meta-Third", "3"),
        ];
        self.post(container, &format!("{prefix}/plain"), &posted)?;
        self.post(
            container,
            &format!("{prefix}/plain"),
            &[("X-Object-Meta-Fourth", "4")],
        )?;
        self.put(container, &format!("{prefix}/n/01"), 5000, &[])?;
        self.delete(container, &format!("{prefix}/n/02"))?;
        self.delete(container, &format!("{prefix}/n/03"))?;
        self.put(container, &format!("{prefix}/n/03"), 33, &[])
    }

    /// Changes the other side's objects: overwrite, post, delete.
    fn change(&mut self, container: &str, prefix: &str) -> Result<()> {
        self.put(
            container,
            &format!("{prefix}/n/04"),
            70_000,
            &[("X-Object-Meta-New", "1")],
        )?;
        self.post(
            container,
            &format!("{prefix}/n/05"),
            &[("X-Object-Meta-Posted", "later")],
        )?;
        self.post(
            container,
            &format!("{prefix}/n/00"),
            &[("X-Object-Meta-Posted", "again")],
        )?;
        self.delete(container, &format!("{prefix}/n/06"))?;
        self.delete(container, &format!("{prefix}/size/{}", 1 << 20))?;
        self.put(container, &format!("{prefix}/n/02"), 22, &[])
    }
}
