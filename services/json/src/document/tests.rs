//! Tests reading, editing and writing documents, and returning to the mark.

use super::super::OwnedTape;
use super::*;

fn written(document: &Document<'_>) -> String {
    let mut out = String::new();
    document.write(Document::ROOT, &mut out);
    out
}

#[test]
fn writes_unopened_values_unchanged() {
    let text = r#"{ "a" : [1 , 2], "b":{"c":1.10} }"#;
    let tape = OwnedTape::parse(text).unwrap();
    let mut document = Document::new(tape.root());
    assert_eq!(written(&document), text);
    let root = Document::ROOT;
    document.open(root).unwrap();
    assert_eq!(written(&document), r#"{"a":[1 , 2],"b":{"c":1.10}}"#);
}

#[test]
fn adds_replaces_and_removes_members_and_items() {
    let tape = OwnedTape::parse(r#"{"list":[1,2,3],"x":true,"y":false}"#).unwrap();
    let mut document = Document::new(tape.root());
    let root = Document::ROOT;
    let list = document.member(root, "list").unwrap().unwrap();
    document.open(list).unwrap();
    let second = document.children(list).nth(1).unwrap();
    document.remove(second, list);
    document.insert_item(list, 0, Content::Scalar("0"));
    document.insert_item(list, 2, Content::Scalar("9"));
    document.push_item(list, Content::Scalar("4"));
    let x = document.member(root, "x").unwrap().unwrap();
    document.replace(x, Content::Scalar("\"new\""));
    let y = document.member(root, "y").unwrap().unwrap();
    document.remove(y, root);
    document.add_member(root, Key::new("z"), Content::Map);
    assert_eq!(written(&document), r#"{"list":[0,1,9,3,4],"x":"new","z":{}}"#);
}

#[test]
fn removed_addition_leaves_no_trace() {
    let tape = OwnedTape::parse("[1]").unwrap();
    let mut document = Document::new(tape.root());
    let root = Document::ROOT;
    document.open(root).unwrap();
    let last = document.push_item(root, Content::Scalar("2"));
    document.remove(last, root);
    let first = document.insert_item(root, 0, Content::Scalar("0"));
    document.remove(first, root);
    document.push_item(root, Content::Scalar("3"));
    assert_eq!(written(&document), "[1,3]");
}

#[test]
fn finds_duplicate_key() {
    for padding in [0, 40] {
        let members: Vec<_> = (0..padding).map(|i| format!("\"k{i}\":0,")).collect();
        let text = format!(r#"{{{}"same":1,"same":2}}"#, members.concat());
        let tape = OwnedTape::parse(text).unwrap();
        let mut document = Document::new(tape.root());
        let root = Document::ROOT;
        assert_eq!(document.open(root), Err(Malformed { key: "same".into() }));
    }
}

#[test]
fn finds_duplicate_key_with_other_escapes() {
    for padding in [0, 40] {
        let members: Vec<_> = (0..padding).map(|i| format!("\"k{i}\":0,")).collect();
        for pair in [r#""same":1,"s\u0061me":2"#, r#""s\u0061me":1,"same":2"#, r#""s\u0061me":1,"sam\u0065":2"#] {
            let text = format!("{{{}{pair}}}", members.concat());
            let tape = OwnedTape::parse(text).unwrap();
            let mut document = Document::new(tape.root());
            assert_eq!(document.open(Document::ROOT), Err(Malformed { key: "same".into() }), "{pair}");
        }
        let text = format!(r#"{{{}"a\"":1,"a":2,"b\u0061":3,"a\\":4}}"#, members.concat());
        let tape = OwnedTape::parse(text).unwrap();
        assert_eq!(Document::new(tape.root()).open(Document::ROOT), Ok(()));
    }
}

#[test]
fn adding_removed_member_replaces_it() {
    let tape = OwnedTape::parse(r#"{"a":1}"#).unwrap();
    let mut document = Document::new(tape.root());
    let root = Document::ROOT;
    let a = document.member(root, "a").unwrap().unwrap();
    document.remove(a, root);
    assert_eq!(document.member(root, "a").unwrap(), None);
    let again = document.add_member(root, Key::new("a"), Content::Scalar("2"));
    assert_eq!(again, a);
    assert_eq!(document.state(a), State::Replaced);
}

#[test]
fn goes_back_to_mark() {
    let tape = OwnedTape::parse(r#"{"a":{"x":1},"l":[1,2]}"#).unwrap();
    let mut document = Document::new(tape.root());
    let list = document.member(Document::ROOT, "l").unwrap().unwrap();
    document.open(list).unwrap();
    document.push_item(list, Content::Scalar("3"));
    let before = written(&document);
    document.mark();
    let change_count = document.change_count();
    let a = document.member(Document::ROOT, "a").unwrap().unwrap();
    let x = document.member(a, "x").unwrap().unwrap();
    document.replace(x, Content::Scalar("2"));
    document.add_member(a, Key::new("y"), Content::Scalar("3"));
    let first = document.children(list).next().unwrap();
    document.remove(first, list);
    document.insert_item(list, 0, Content::Scalar("0"));
    let kept = document.keep("\"made\"");
    document.push_item(list, kept);
    document.remove(a, Document::ROOT);
    assert_eq!(written(&document), r#"{"l":[0,2,3,"made"]}"#);
    document.go_back();
    assert_eq!(written(&document), before);
    assert_ne!(document.change_count(), change_count, "go_back invalidates cached list positions");
    let mut members = document.entries(Document::ROOT);
    assert!(members.any(|member| member.id == a && member.is_untouched()));
}
