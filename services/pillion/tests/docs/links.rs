//! Links in what people read: of those that stay in the repository each leads to something, and one with a `#` to a heading
//! that has it, as GitHub makes the anchors of headings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{documents, root};

/// A file without its fenced blocks and without `inline code`: of that nothing is a link or a heading.
fn prose(text: &str) -> String {
    let mut is_fenced = false;
    let lines = text.lines().map(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        if is_fence || is_fenced { "" } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// Where the links of a file lead to, as they are written: `[text](target)` and `[name]: target`.
fn targets(text: &str) -> Vec<String> {
    let prose = without_code(&prose(text));
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let named = prose.lines().filter_map(|line| {
        let (name, target) = line.trim_start().strip_prefix('[')?.split_once("]: ")?;
        (!name.contains(']')).then_some(target)
    });
    inline.chain(named).map(|target| target.trim().to_owned()).collect()
}

/// The anchor of a heading: small letters, digits, `-` and `_` stay, blanks become `-`, all else goes.
fn anchor(heading: &str) -> String {
    // Of a link in a heading its text is shown.
    let shown = heading.split("](").enumerate().map(|(place, part)| match place {
        0 => part,
        _ => part.split_once(')').map_or("", |(_, rest)| rest),
    });
    let kept = shown.collect::<String>().to_lowercase();
    let kept = kept.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    });
    kept.collect()
}

/// All anchors of a file.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = BTreeSet::new();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for line in prose(text).lines() {
        let depth = line.chars().take_while(|letter| *letter == '#').count();
        if let (1..=6, Some(heading)) = (depth, line.get(depth..).and_then(|rest| rest.strip_prefix(' '))) {
            let anchor = anchor(heading.trim());
            let before = times.entry(anchor.clone()).or_default();
            found.insert(if *before == 0 { anchor } else { format!("{anchor}-{before}") });
            *before += 1;
        }
    }
    found
}

/// What is wrong with the links of a file, each in words.
fn broken(document: &Path, text: &str) -> Vec<String> {
    let wrong = |target: &String| {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        if path.contains("://") || path.starts_with("mailto:") {
            return None;
        }
        let file =
            if path.is_empty() { document.to_path_buf() } else { document.parent().unwrap_or(document).join(path) };
        if !path.is_empty() && !file.exists() {
            return Some(format!("{target} leads nowhere"));
        }
        let is_page = file.extension().is_some_and(|extension| extension == "md");
        if anchor.is_empty() || !is_page {
            return None;
        }
        let page = if path.is_empty() { text.to_owned() } else { fs::read_to_string(&file).unwrap() };
        let known = anchors(&page);
        (!known.contains(anchor)).then(|| format!("{target} has no such heading; there are {known:?}"))
    };
    targets(text).iter().filter_map(wrong).collect()
}

/// A file of the repository, and its links that are of no use.
fn all_broken() -> Vec<(PathBuf, Vec<String>)> {
    let read = |document: PathBuf| {
        let text = fs::read_to_string(&document).unwrap();
        let broken = broken(&document, &text);
        (document, broken)
    };
    documents().into_iter().map(read).filter(|(_, broken)| !broken.is_empty()).collect()
}

#[test]
fn every_link_leads_to_something_and_every_anchor_to_a_heading() {
    let broken = all_broken();
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = root().join("docs/page.md");
    let text = "# One\n\n## `code`, and [a link](LICENSE)'s text\n## One\n\n\
                [a](#one) [b](#one-1) [c](#code-and-a-links-text) [d](cli.md#all-commands) [e](https://example.com/#x)\n\
                `[f](nowhere.md)`\n```sh\n# Two\n[g](nowhere.md)\n```\n[h]: cli.md\n";
    // It is not below docs/.
    assert_eq!(broken(&page, text), ["LICENSE leads nowhere"]);
    for (wrong, expected) in [
        ("[x](#two)", "#two has no such heading"),
        ("[x](cli.md#no-such)", "cli.md#no-such has no such heading"),
        ("[x](no.md)", "no.md leads nowhere"),
        ("[x]: no.md", "no.md leads nowhere"),
    ] {
        let found = broken(&page, &format!("{}\n{wrong}\n", text.replace("LICENSE", "cli.md")));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{wrong}: {found:?}");
    }
}
