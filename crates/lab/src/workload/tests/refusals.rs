//! Malformed and hostile files are refused with a position.

use proptest::prelude::*;

use super::super::{Format, Options, limits, read};
use super::refused;

#[test]
fn entities_of_a_file_s_own_are_refused() {
    let bomb = "<?xml version=\"1.0\"?>\n<!DOCTYPE w [ <!ENTITY a \"aa\"><!ENTITY b \"&a;&a;\"> ]>\n<workload name=\"&b;\"/>";
    let error = refused(bomb);
    assert_eq!((error.line, error.column), (2, 1), "{error}");
    assert!(error.expected.contains("DOCTYPE"), "{error}");
    let error = refused("<workload\n name=\"x&b;\"/>");
    assert_eq!((error.line, error.column), (2, 8), "{error}");
    let error = refused("<workload name=\"x\">&lt;</workload>");
    assert_eq!((error.line, error.column), (1, 20), "{error}");
}

#[test]
fn malformed_xml_is_shown() {
    for (text, line, column) in [
        ("<workload name=\"x\">\n<workflow></work>", 2, 11),
        ("<workload name=\"x\">\n  <workflow>", 2, 13),
        ("<workload name=\"x\" name=\"y\"/>", 1, 1),
        ("<workload name=x/>", 1, 1),
        ("<workload name=\"x\"/>\n<workload/>", 2, 1),
        ("<workload name=\"x\">text</workload>", 1, 20),
        ("<workload name=\"x", 1, 1),
        ("<worklaod/>", 1, 1),
        ("<!-- never ended", 1, 1),
    ] {
        let error = refused(text);
        assert_eq!(
            (error.line, error.column),
            (line, column),
            "{error}\n{text}"
        );
    }
}

#[test]
fn gigantic_things_are_refused() {
    let deep = "<a>".repeat(10_000);
    assert!(refused(&deep).found.contains("deep"));
    let many = format!(
        "<workload name=\"x\">{}</workload>",
        "<a/>".repeat(limits::ELEMENTS + 1)
    );
    assert!(refused(&many).expected.contains("50000"));
    let long = format!(
        "<workload name=\"{}\"/>",
        "x".repeat(limits::TEXT_BYTES + 1)
    );
    assert!(refused(&long).expected.contains("4096"));
    let file = vec![b' '; limits::FILE_BYTES + 1];
    let error = read("file", &file, &Options::default()).unwrap_err();
    assert!(error.expected.contains("at most"), "{error}");
    let deep = "[".repeat(100_000);
    assert!(refused(&format!("{{ \"name\": {deep}")).line == 1);
    assert!(refused(&format!("name = {deep}")).line == 1);
    let error = read("file", b"name = \"\xff\"", &Options::default()).unwrap_err();
    assert_eq!(
        (error.line, error.column, error.expected.as_str()),
        (1, 9, "UTF-8")
    );
}

#[test]
fn sweeps_without_end_are_refused() {
    let dimensions = |count: usize| {
        let values: Vec<String> = (0..count)
            .map(|n| format!("for.v{n} = [1,2,3,4,5,6,7,8,9,10]"))
            .collect();
        values.join("\n")
    };
    let text = format!("[[stage]]\n{}\nclose_delay = 1", dimensions(12));
    let error = refused(&text);
    assert!(error.expected.contains("at most"), "{error}");
    let text = "[[stage]]\nrepeat = 10000\n[[stage.stage]]\nrepeat = 10000\nclose_delay = 1";
    assert!(refused(text).expected.contains("at most"));
    let text = "[parameters]\na = \"0123456789\"\nb = \"${a}${a}${a}${a}${a}${a}${a}${a}${a}\"\n\
        c = \"${b}${b}${b}${b}${b}${b}${b}${b}\"\nd = \"${c}${c}${c}${c}${c}${c}${c}${c}\"\n\
        [[stage]]\nclose_delay = 1";
    let error = refused(text);
    assert!(error.expected.contains("4096"), "{error}");
    assert_eq!(error.line, 5, "{error}");
}

fn words() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("<workload name=\"a\">"),
        Just("</workload>"),
        Just("<workflow config=\"\">"),
        Just("</workflow>"),
        Just("<workstage name=\"a\">"),
        Just("</workstage>"),
        Just("<work name=\"a\" workers=\"1\" runtime=\"1\">"),
        Just("</work>"),
        Just("<operation type=\"read\" config=\"containers=u(1);objects=h(1||1)\"/>"),
        Just("<operation type=\"write\" config=\"sizes=c(1)GB;containers=c(0);objects=1-2\"/>"),
        Just("<storage type=\"swift\" config=\"a=b;=;;c\"/>"),
        Just("{\"name\": \"x\", \"sizes\": ["),
        Just("{\"name\": \"a\", \"size_min\": 0, \"size_max\": 9}"),
        Just("], \"initial_files\": {\"a\": 1}, \"crud_profile\": [1,1,1,1],"),
        Just("\"user_count\": 1, \"run_seconds\": 1}"),
        Just("# é\n"),
        Just("[bench]\n"),
        Just("object_size = 5k\n"),
        Just("num_containers = 1\ncontainer_name = 007\n"),
        Just("[[stage]]\n"),
        Just("[[stage.stage]]\n"),
        Just("for.a = [1, 2]\n"),
        Just("name = \"${a}\"\n"),
        Just("[[stage.work]]\n"),
        Just("runtime = \"1h30m\"\n"),
        Just("[[stage.work.operation]]\n"),
        Just(
            "type = \"write\"\ncontainers = 1\nobjects = \"zipf(1,9,0.5)\"\nsizes = \"u(1KB,2)\"\n"
        ),
        Just("knee = { max_workers = 5 }\n"),
        Just("rate = 5\n"),
        Just("[parameters]\n"),
        Just("a = 5\n"),
    ];
    let any = prop_oneof![4 => word.prop_map(str::to_owned), 1 => ".{0,6}"];
    proptest::collection::vec(any, 0..24).prop_map(|words| words.concat())
}

proptest! {
    /// Any bytes give a workload or an error with a position in the file, and never a panic.
    #[test]
    fn nothing_breaks_a_reader(text in words(), format in 0usize..5) {
        let options = Options {
            format: Format::ALL.get(format).copied(),
            ..Options::default()
        };
        match read("file", text.as_bytes(), &options) {
            Ok(workload) => prop_assert!(!workload.plan.stages.is_empty()),
            Err(error) => {
                prop_assert!(error.line >= 1 && error.line <= text.lines().count() + 1, "{error}");
                prop_assert!(error.column >= 1, "{error}");
                prop_assert!(!error.found.is_empty() && !error.expected.is_empty());
            }
        }
    }

    #[test]
    fn bytes_break_no_reader(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for format in Format::ALL {
            let options = Options { format: Some(format), ..Options::default() };
            let _ = read("file", &bytes, &options);
        }
    }
}
