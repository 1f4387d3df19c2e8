//! Tests of the readers, one file for each.

mod cosbench;
mod native;
mod refusals;
mod round_trip;
mod ssbench;
mod swift_bench;
mod target;

use super::{Format, Options, Workload, WorkloadError, read};
use crate::plan::Plan;

fn workload(text: &str) -> Workload {
    match read("file", text.as_bytes(), &Options::default()) {
        Ok(workload) => workload,
        Err(error) => panic!("{error}\n{text}"),
    }
}

fn plan(text: &str) -> Plan {
    workload(text).plan
}

fn refused(text: &str) -> WorkloadError {
    match read("file", text.as_bytes(), &Options::default()) {
        Ok(workload) => panic!("read as {:?}\n{text}", workload.plan),
        Err(error) => error,
    }
}

#[test]
fn formats_are_told_from_content() {
    for (text, format) in [
        ("<?xml version=\"1.0\"?>\n<workload/>", Format::Cosbench),
        ("\u{feff}<workload/>", Format::Cosbench),
        ("# a comment\n\n{ \"name\": 1 }", Format::Ssbench),
        ("; a comment\n[bench]\nauth = x", Format::SwiftBench),
        ("[ bench ]", Format::SwiftBench),
        ("[DEFAULT]\nuser = x\n[bench]", Format::SwiftBench),
        ("name = \"x\"", Format::Lab),
        ("# x\n[[stage]]", Format::Lab),
        ("[[bench]]", Format::Lab),
        ("", Format::Lab),
    ] {
        assert_eq!(Format::detect(text), format, "{text}");
    }
    for format in Format::ALL {
        assert_eq!(Format::from_name(format.as_str()), Some(format));
        assert_eq!(Format::from_name(format.extension()), Some(format));
    }
}

#[test]
fn the_format_may_be_said() {
    let options = Options {
        format: Some(Format::Ssbench),
        ..Options::default()
    };
    let error = read("a.xml", b"<workload/>", &options).unwrap_err();
    assert_eq!((error.line, error.column), (1, 1), "{error}");
    assert!(error.expected.contains("ssbench"), "{error}");
}

/// Existing workload files in all formats: those of this repository, and those in the folder that
/// `CAIRN_LAB_WORKLOADS` may give, are read unchanged; writing and reading them again gives the same
/// plan.
#[test]
fn files_people_have_are_read() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let own = ["docs/lab-example", "studies/workloads", "xtask/lab"];
    let mut folders: Vec<_> = own.iter().map(|folder| root.join(folder)).collect();
    folders.extend(std::env::var_os("CAIRN_LAB_WORKLOADS").map(Into::into));
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let extension = path.extension().and_then(|extension| extension.to_str());
            if !matches!(extension, Some("xml" | "scenario" | "conf" | "toml")) {
                continue;
            }
            let name = path.display().to_string();
            let bytes = std::fs::read(&path).unwrap();
            let workload = read(&name, &bytes, &Options::default()).unwrap();
            println!(
                "{name}: {}, {} stages",
                workload.format,
                workload.plan.stages.len()
            );
            for note in &workload.notes {
                println!("    {note}");
            }
            let written = super::to_toml(&workload.plan);
            assert_eq!(plan(&written), workload.plan, "{name}");
            count += 1;
        }
    }
    assert!(count > 0);
}
