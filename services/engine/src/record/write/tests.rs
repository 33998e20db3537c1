//! Tests that records are read as they were written.

use super::super::{Change, is_genuine};
use super::*;

fn record(text: &str) -> Record {
    Record::read(text).unwrap()
}

#[test]
fn reads_back_written_record() {
    let mut writer = RecordWriter::new();
    writer.begin("a", "1", None);
    writer.add("/spec/containers/x");
    writer.add("/metadata/annotations/example.com~1y");
    assert!(writer.end());
    let mark = writer.begin("b", "2", None);
    writer.add("/spec/volumes/gone");
    writer.take_back(mark);
    writer.begin("c", "3", None);
    assert!(writer.end());
    let text: String = serde_json::from_str(&writer.finish(None).unwrap()).unwrap();
    let read = record(&text);
    assert_eq!(read.of("a", |_| false).added, ["/spec/containers/x", "/metadata/annotations/example.com~1y"]);
    assert!(read.of("b", |_| false).added.is_empty());
}

#[test]
fn continues_entry_and_keeps_others() {
    let earlier = record(
        r#"{"version":1,"profiles":[{"profile":"a","revision":"1","added":["/x"]},{"profile":"b","revision":"1","added":["/y"]}]}"#,
    );
    let mut writer = RecordWriter::new();
    writer.begin("a", "1", Some(&earlier));
    assert!(writer.end());
    writer.keep_others(&earlier, |name| name == "a");
    let text: String = serde_json::from_str(&writer.finish(None).unwrap()).unwrap();
    assert_eq!(record(&text).of("a", |_| false).added, ["/x"]);
    assert_eq!(record(&text).of("b", |_| false).added, ["/y"]);
}

#[test]
fn escapes_strings() {
    let mut writer = RecordWriter::new();
    writer.begin("a", "1", None);
    writer.add("/metadata/annotations/a\"b\\c");
    writer.replace("/metadata/labels/\"", r#"{"x":"\"\\"}"#, None);
    let (length, escapes) = (writer.out.len() + writer.replaced.len(), writer.escapes + writer.replaced_escapes);
    assert!(writer.end());
    let mark = writer.begin("b", "1", None);
    let text: String = serde_json::from_str(
        &writer.at(mark).map(|record| serde_json::to_string(record.tape.root().raw()).unwrap()).unwrap(),
    )
    .unwrap();
    assert_eq!(text.len(), length - escapes + r#"],"replaced":[]}]}"#.len());
    assert_eq!(record(&text).of("a", |_| false).added, ["/metadata/annotations/a\"b\\c"]);
    let read = record(&text);
    let Some(Change::Replaced((pointer, original, None))) = read.changes().next() else { panic!("{text}") };
    assert_eq!((&*pointer, original.raw()), ("/metadata/labels/\"", r#"{"x":"\"\\"}"#));
}

fn a_move<'m>(pointer: &'m str, behind: &'m str, same: usize) -> Move<'m> {
    Move { pointer: pointer.into(), behind: behind.into(), same }
}

/// Returns a description of each change in a record.
fn changes(record: &Record) -> Vec<String> {
    let shown = |change: Change<'_>| match change {
        Change::Added(pointer) => format!("added {pointer}"),
        Change::Replaced((pointer, ..)) => format!("replaced {pointer}"),
        Change::Moved(Move { pointer, behind, same }) => format!("moved {pointer} from {behind:?} {same}"),
    };
    record.changes().map(shown).collect()
}

fn finished(writer: RecordWriter, earlier: Option<&Record>) -> String {
    serde_json::from_str(&writer.finish(earlier).unwrap()).unwrap()
}

#[test]
fn reads_back_moves() {
    let mut writer = RecordWriter::new();
    writer.begin("a", "1", None);
    writer.moves(&a_move("/spec/containers/x", "", 0));
    writer.replace("/spec/containers/y", "{}", Some("/\"x"));
    writer.moves(&a_move("/spec/containers/\"z", "/\"x", 2));
    writer.add("/spec/containers/w");
    writer.replace("/spec/hostNetwork", "true", None);
    assert!(writer.end());
    let escapes = writer.escapes;
    let quoted = writer.at(writer.mark()).unwrap().tape.root().raw().to_owned();
    assert_eq!(writer.out.len() + 2 - escapes, quoted.len(), "escapes are counted");
    let expected = [
        r#"moved /spec/containers/x from "" 0"#,
        "replaced /spec/containers/y",
        r#"moved /spec/containers/"z from "/\"x" 2"#,
        "replaced /spec/hostNetwork",
        "added /spec/containers/w",
    ];
    let first = record(&finished(writer, None));
    assert_eq!(changes(&first), expected);
    // A later pass of the same profile extends its entry. A pass of another profile keeps the entry.
    let mut writer = RecordWriter::new();
    writer.begin("a", "1", Some(&first));
    writer.moves(&a_move("/spec/containers/x", "/w", 0));
    assert!(writer.end());
    let second = changes(&record(&finished(writer, Some(&first))));
    assert_eq!(second[..4], expected[..4]);
    assert_eq!(second[4..], [r#"moved /spec/containers/x from "/w" 0"#, expected[4]]);
    let mut writer = RecordWriter::new();
    writer.keep_others(&first, |_| false);
    assert_eq!(changes(&record(&finished(writer, Some(&first)))), expected);
}

#[test]
fn omits_moves_above_size_limit() {
    let mut writer = RecordWriter::new();
    let long = "x".repeat(100);
    for profile in ["a", "b"] {
        writer.begin(profile, "1", None);
        for _ in 0..100 {
            writer.moves(&a_move(&long, &long, 1));
        }
        assert!(!writer.is_full());
        assert!(writer.end());
    }
    // Moves do not reduce the space for other changes.
    let rest = MAX_RECORD_BYTES + writer.escapes + writer.move_bytes - writer.out.len();
    let around = r#",{"profile":"c","revision":"1","added":[""]}]}"#.len();
    for (more, fits) in [(0, true), (1, false)] {
        let mark = writer.begin("c", "1", None);
        writer.add(&"y".repeat(rest - around + more));
        assert_eq!(writer.end(), fits);
        if fits {
            let length = writer.out.len() + 2 - writer.escapes;
            assert_eq!(length, MAX_RECORD_BYTES + writer.move_bytes);
            let text = writer.at(writer.mark()).unwrap();
            let moved = text.changes().filter(|change| matches!(change, Change::Moved(_))).count();
            assert!((10..100).contains(&moved), "{moved}");
        }
        writer.take_back(mark);
    }
    // Dropping an entry frees its space.
    let mut writer = RecordWriter::new();
    let mark = writer.begin("a", "1", None);
    writer.moves(&a_move(&long, &long, 1));
    assert!(writer.end());
    writer.take_back(mark);
    assert_eq!((writer.move_bytes, writer.escapes), (0, RecordWriter::OPEN_ESCAPES));
}

#[test]
fn restores_kept_values() {
    let entry = |name: &str| format!(r#"{{"profile":"{name}","revision":"1","added":["/{name}"]}}"#);
    let earlier = format!(r#"{{"version":1,"profiles":[{},{},{}]}}"#, entry("a"), entry("b"), entry("c"));
    let earlier = record(&earlier);
    let mut writer = RecordWriter::new();
    writer.keep_others(&earlier, |name| name != "b");
    for name in ["first", "a", "c", "last"] {
        writer.begin(name, "2", Some(&earlier));
        assert!(writer.end());
    }
    let record = record(&finished(writer, Some(&earlier)));
    let names: Vec<_> = record.revisions().map(|(name, revision)| format!("{name} {revision}")).collect();
    assert_eq!(names, ["a 2", "b 1", "first 2", "c 2", "last 2"]);
    assert_eq!(record.all_added().collect::<Vec<_>>(), ["/a", "/b", "/c"]);
}

#[test]
fn record_without_entries_is_none() {
    assert_eq!(RecordWriter::new().finish(None), None);
}

#[test]
fn rejects_other_version() {
    assert!(Record::read(r#"{"version":2,"profiles":[]}"#).is_none());
    assert!(Record::read("nonsense").is_none());
}

#[test]
fn record_is_genuine_without_managed_fields() {
    let genuine = |managed: &str| {
        let text = format!(r#"{{"metadata":{{"managedFields":{managed}}}}}"#);
        is_genuine(OwnedTape::parse(text).unwrap().root())
    };
    let named =
        r#"[{"fieldsV1":{}},{"fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:pillion.dev/injected":{}}}}}]"#;
    assert!(!genuine(named));
    assert!(genuine(r#"[{"fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:other":{}}}}}]"#));
    assert!(!genuine("[]"));
    assert!(!is_genuine(OwnedTape::parse(r#"{"metadata":{}}"#).unwrap().root()));
}
