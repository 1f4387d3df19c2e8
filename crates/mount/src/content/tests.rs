//! File versions overlaid by local writes.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::store::ObjectName;

fn memory(budget: &Arc<Budget>, text: &'static str) -> FileSource {
    FileSource::Memory {
        chunk: Chunk::new(Bytes::from_static(text.as_bytes()), budget),
        offset: 0,
    }
}

fn shown(content: &Content) -> String {
    let mut text = String::new();
    for span in content.spans(0, u64::MAX) {
        match &span.source {
            Some(FileSource::Own { offset }) => {
                for i in 0..span.length {
                    text.push(char::from(b'A' + (offset + i) as u8));
                }
            }
            Some(source @ FileSource::Memory { .. }) => {
                let bytes = source.bytes(span.length).unwrap();
                text.push_str(std::str::from_utf8(&bytes).unwrap());
            }
            Some(FileSource::Segment { offset, .. }) => {
                text.push_str(&format!("<{offset}+{}>", span.length))
            }
            Some(FileSource::Zero) | None => text.push_str(&"0".repeat(span.length as usize)),
        }
    }
    text
}

#[test]
fn what_was_cut_off_does_not_come_back() {
    let budget = Arc::default();
    let mut content = Content::of(Layout::own(8, true));
    content.write(2, 2, memory(&budget, "xy"));
    assert_eq!(shown(&content), "ABxyEFGH");
    content.resize(3);
    content.resize(6);
    assert_eq!(shown(&content), "ABx000");
    content.write(7, 1, memory(&budget, "z"));
    assert_eq!(shown(&content), "ABx0000z");
}

#[test]
fn a_foreign_version_goes_below() {
    let budget = Arc::default();
    let mut content = Content::of(Layout::own(4, true));
    content.write(1, 1, memory(&budget, "x"));
    content.rebase(Layout::own(6, true));
    assert_eq!(shown(&content), "AxCDEF");
    content.resize(2);
    content.rebase(Layout::own(6, true));
    assert_eq!(shown(&content), "Ax");
    let mut made = Content::default();
    made.write(0, 1, memory(&budget, "y"));
    made.rebase(Layout::own(3, true));
    assert_eq!(shown(&made), "yBC");
    let mut emptied = Content::default();
    emptied.empty();
    emptied.write(0, 1, memory(&budget, "y"));
    emptied.rebase(Layout::own(3, true));
    assert_eq!(shown(&emptied), "y");
}

/// A truncation that was not stored, while others emptied the file and wrote it again.
#[test]
fn a_foreign_version_is_cut_where_the_file_was() {
    let mut content = Content::of(Layout::own(8, true));
    content.resize(5);
    content.rebase(Layout::own(0, true));
    assert_eq!(shown(&content), "00000");
    content.rebase(Layout::own(8, true));
    assert_eq!(shown(&content), "ABCDE");
    content.rebase(Layout::own(2, true));
    content.resize(3);
    content.resize(4);
    content.rebase(Layout::own(8, true));
    assert_eq!(shown(&content), "ABC0");
}

#[test]
fn an_extension_outlives_longer_and_shorter_versions() {
    let budget = Arc::default();
    let mut content = Content::of(Layout::own(2, true));
    content.resize(5);
    content.rebase(Layout::own(7, true));
    assert_eq!(shown(&content), "ABCDEFG");
    content.write(0, 1, memory(&budget, "x"));
    content.rebase(Layout::own(1, true));
    assert_eq!(shown(&content), "x0000");
    content.resize(3);
    content.rebase(Layout::own(1, true));
    assert_eq!(shown(&content), "x00");
    // Shorter than it was, and longer than all that was written.
    let mut content = Content::of(Layout::own(2, true));
    content.write(7, 1, memory(&budget, "y"));
    content.resize(4);
    content.rebase(Layout::own(2, true));
    assert_eq!(shown(&content), "AB00");
}

/// Bytes of a version that others have replaced are theirs to keep or to overwrite, whether they were
/// stored as a segment or as a part of one object.
#[test]
fn what_was_stored_is_not_written_again() {
    let budget = Arc::default();
    for is_large in [true, false] {
        let name = ObjectName::new("c", "s");
        let segment = Arc::new(Segment { name, bytes: 3 });
        let needed = HashSet::from([segment.clone()]);
        let mut content = Content::of(Layout::own(2, true));
        content.append(3, memory(&budget, "xyz"));
        if is_large {
            content.moved(2, 3, FileSource::Segment { segment, offset: 0 });
        }
        let (shrunk, stored) = (content.shrunk(), content.written().clone());
        let (mut cut, mut later, mut over) = (content.clone(), content.clone(), content.clone());
        content.overtaken(5, shrunk, &needed, &stored);
        content.rebase(Layout::own(4, true));
        assert_eq!(shown(&content), "ABCD");
        later.append(1, memory(&budget, "!"));
        later.overtaken(5, shrunk, &needed, &stored);
        later.rebase(Layout::own(7, true));
        assert_eq!(shown(&later), "ABCDEFG!");
        cut.resize(3);
        cut.overtaken(5, shrunk, &needed, &stored);
        cut.rebase(Layout::own(8, true));
        assert_eq!(shown(&cut), "ABC");
        over.write(3, 1, memory(&budget, "?"));
        over.overtaken(5, shrunk, &needed, &stored);
        over.rebase(Layout::own(6, true));
        assert_eq!(shown(&over), "ABC?EF", "written since");
    }
}

#[test]
fn what_was_appended_goes_behind_a_foreign_version() {
    let budget = Arc::default();
    let of = |bytes: u64| Content::of(Layout::own(bytes, true));
    let mut content = of(2);
    content.append(2, memory(&budget, "xy"));
    content.append(1, memory(&budget, "z"));
    assert_eq!(shown(&content), "ABxyz");
    content.rebase(Layout::own(4, true));
    assert_eq!(shown(&content), "ABCDxyz");
    // It is moved again if that swap is lost too, but no more once its position is fixed.
    content.rebase(Layout::own(5, true));
    assert_eq!(shown(&content), "ABCDExyz");
    let end = content.size();
    content.append(1, memory(&budget, "!"));
    content.place(end);
    content.rebase(Layout::own(9, true));
    assert_eq!(shown(&content), "ABCDExyzI!");
    // In a shorter version its position is earlier.
    let mut content = of(4);
    content.append(1, memory(&budget, "x"));
    content.rebase(Layout::own(2, true));
    assert_eq!(shown(&content), "ABx");
}

#[test]
fn what_has_a_place_stays_where_appended_bytes_move() {
    let budget = Arc::default();
    let mut content = Content::of(Layout::own(2, true));
    content.write(0, 1, memory(&budget, "w"));
    content.append(1, memory(&budget, "x"));
    content.write(6, 1, memory(&budget, "v"));
    content.append(1, memory(&budget, "y"));
    assert_eq!(shown(&content), "wBx000vy");
    let mut longer = content.clone();
    content.rebase(Layout::own(4, true));
    assert_eq!(shown(&content), "wBCDx0vy");
    longer.rebase(Layout::own(9, true));
    assert_eq!(shown(&longer), "wBCDEFvHIxy");
    // Appended to a file that was extended before.
    let mut content = Content::of(Layout::own(2, true));
    content.resize(4);
    content.append(1, memory(&budget, "x"));
    content.rebase(Layout::own(3, true));
    assert_eq!(shown(&content), "ABC0x");
}

#[test]
fn bytes_of_one_base_do_not_hide_those_of_another() {
    let budget = Arc::default();
    let mut content = Content::of(Layout::own(4, true));
    content.write(1, 1, memory(&budget, "x"));
    content.write(6, 1, memory(&budget, "y"));
    let name = ObjectName::new("c", "s");
    let segment = Arc::new(Segment { name, bytes: 7 });
    content.moved(0, 7, FileSource::Segment { segment, offset: 0 });
    assert_eq!(shown(&content), "<0+1><1+1><2+4><6+1>");
    content.rebase(Layout::own(6, true));
    assert_eq!(shown(&content), "A<1+1>CDEF<6+1>");
}

#[test]
fn an_upload_of_bytes_that_have_moved_is_not_taken_for_others() {
    let budget = Arc::default();
    let mut content = Content::of(Layout::own(2, true));
    let bytes = memory(&budget, "wxyz");
    content.append(4, bytes.clone());
    content.rebase(Layout::own(3, true));
    let name = ObjectName::new("c", "s");
    let segment = Arc::new(Segment { name, bytes: 4 });
    let to = FileSource::Segment { segment, offset: 0 };
    content.uploaded(2, 4, &bytes, &to);
    assert_eq!(shown(&content), "ABCwxyz");
    content.uploaded(3, 4, &bytes, &to);
    assert_eq!(shown(&content), "ABC<0+4>");
}

#[test]
fn memory_is_given_back_when_no_byte_is_needed() {
    let budget = Arc::default();
    let mut content = Content::default();
    let first = memory(&budget, "abcd");
    content.write(0, 4, first.clone());
    content.write(1, 1, memory(&budget, "z"));
    assert_eq!(budget.used(), 5);
    let segment = Arc::new(Segment {
        name: ObjectName::new("c", "s"),
        bytes: 4,
    });
    let to = FileSource::Segment {
        segment,
        offset: 10,
    };
    content.uploaded(0, 4, &first, &to);
    drop(first);
    assert_eq!(shown(&content), "<10+1>z<12+2>");
    assert_eq!(budget.used(), 1);
    content.resize(0);
    assert_eq!(budget.used(), 0);
}
