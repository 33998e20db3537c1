//! Reads the files of a folder and their documents, and applies patches as the tests of the peers do. The peers are the
//! injectors that the shipped profiles replace.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};

/// The maximum depth of nested folders.
const MAX_DEPTH: usize = 12;

/// Returns all files below a folder, sorted.
pub(crate) fn all(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(folder, 0, &mut found);
    found.sort();
    found
}

/// Returns the folders that [`all`] cannot read, by their paths below the folder, with the reason.
pub(crate) fn unread_folders(folder: &Path) -> Vec<(String, String)> {
    let mut unread_folders = collect(folder, 0, &mut Vec::new());
    unread_folders.sort();
    let below = |path: PathBuf| path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
    unread_folders.into_iter().map(|(path, why)| (below(path), why)).collect()
}

/// Collects the files below a folder. Returns the folders that it cannot read, with the reason.
fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Vec<(PathBuf, String)> {
    if depth > MAX_DEPTH {
        return vec![(folder.to_owned(), format!("only {MAX_DEPTH} levels of folders are read"))];
    }
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return vec![(folder.to_owned(), error.to_string())],
    };
    let mut unread_folders = Vec::new();
    for entry in entries {
        match entry.map(|entry| entry.path()) {
            Ok(path) if path.is_dir() => unread_folders.extend(collect(&path, depth + 1, found)),
            Ok(path) => found.push(path),
            Err(error) => unread_folders.push((folder.to_owned(), error.to_string())),
        }
    }
    unread_folders
}

/// Returns the files with an ending. The name of each file's case is its path below the folder, without the ending.
pub(crate) fn ending(folder: &Path, ending: &str) -> Vec<(String, PathBuf)> {
    let named = all(folder).into_iter().filter_map(|path| {
        let name = path.strip_prefix(folder).ok()?.to_string_lossy().strip_suffix(ending)?.to_owned();
        Some((name, path))
    });
    named.collect()
}

/// Returns the last part of a path.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads a file. An error contains the name of the file.
pub(crate) fn text(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", name(path)))
}

/// Reads the documents of a file. The items of a list are separate documents.
pub(crate) fn documents(path: &Path) -> Result<Vec<Json>, String> {
    parse(&text(path)?).map_err(|error| format!("{}: {error}", name(path)))
}

/// Parses the documents of a YAML string. The items of a list are separate documents. Nulls are removed, as the API
/// server does.
pub(crate) fn parse(text: &str) -> Result<Vec<Json>, String> {
    Ok(with_nulls(text)?.into_iter().map(without_nulls).filter(|document| !document.is_null()).collect())
}

/// Reads the documents of a settings file, in which a null removes a default.
pub(crate) fn settings(path: &Path) -> Result<Vec<Json>, String> {
    with_nulls(&text(path)?).map_err(|error| format!("{}: {error}", name(path)))
}

/// Parses YAML as the peers' tests do: if a key is repeated, its last entry is used.
fn with_nulls(text: &str) -> Result<Vec<Json>, String> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        with_snippet: false,
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
    };
    let found: Vec<Json> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| error.to_string())?;
    let mut documents = Vec::new();
    for document in found {
        flatten(document, &mut documents);
    }
    Ok(documents)
}

fn flatten(document: Json, documents: &mut Vec<Json>) {
    let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match document {
        Json::Object(mut list) if is_list => {
            for item in list.remove("items").and_then(|items| items.as_array().cloned()).unwrap_or_default() {
                flatten(item, documents);
            }
        }
        Json::Null => {}
        document => documents.push(document),
    }
}

/// Removes the members of all maps in a value that are null.
pub(crate) fn without_nulls(value: Json) -> Json {
    match value {
        Json::Object(members) => {
            let present = members.into_iter().filter(|(_, value)| !value.is_null());
            present.map(|(key, value)| (key, without_nulls(value))).collect::<Map<_, _>>().into()
        }
        Json::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// Fields that the API's types omit if their value is `false`.
const OMITTED_FALSE: [&str; 7] = ["hostIPC", "hostNetwork", "hostPID", "readOnly", "stdin", "stdinOnce", "tty"];

/// Fields that the API's types omit if their value is 0.
const OMITTED_ZERO: [&str; 6] =
    ["failureThreshold", "hostPort", "initialDelaySeconds", "periodSeconds", "successThreshold", "timeoutSeconds"];

/// Maps whose keys are chosen by the author, and are not names of fields.
const MAPS: [&str; 6] = ["annotations", "labels", "limits", "matchLabels", "nodeSelector", "requests"];

/// Removes zero values that the API's types omit: `false` in the fields [`OMITTED_FALSE`], 0 in the fields
/// [`OMITTED_ZERO`], and empty strings, but no values in [`MAPS`]. The peers deserialize objects into these types and
/// serialize them again.
pub(crate) fn remove_omitted(value: &mut Json) {
    match value {
        Json::Object(members) => {
            members.retain(|key, value| match value {
                Json::Bool(false) => !OMITTED_FALSE.contains(&key.as_str()),
                Json::Number(number) => number.as_i64() != Some(0) || !OMITTED_ZERO.contains(&key.as_str()),
                Json::String(text) => !text.is_empty(),
                _ => true,
            });
            members
                .iter_mut()
                .filter(|(key, _)| !MAPS.contains(&key.as_str()))
                .for_each(|(_, value)| remove_omitted(value));
        }
        Json::Array(items) => items.iter_mut().for_each(remove_omitted),
        _ => {}
    }
}

#[test]
fn omits_zero_values_like_kubernetes_types() {
    let mut pod = json!({
        "metadata": {"labels": {"a": ""}, "annotations": {"b": ""}},
        "spec": {"hostNetwork": false, "hostPID": true, "nodeName": "", "terminationGracePeriodSeconds": 0, "containers": [
            {"name": "a", "env": [{"name": "X", "value": ""}], "args": [""], "securityContext": {"privileged": false, "runAsUser": 0},
                "readinessProbe": {"initialDelaySeconds": 0, "periodSeconds": 5}},
        ]},
    });
    remove_omitted(&mut pod);
    let expected = json!({
        "metadata": {"labels": {"a": ""}, "annotations": {"b": ""}},
        "spec": {"hostPID": true, "terminationGracePeriodSeconds": 0, "containers": [
            {"name": "a", "env": [{"name": "X"}], "args": [""], "securityContext": {"privileged": false, "runAsUser": 0},
                "readinessProbe": {"periodSeconds": 5}},
        ]},
    });
    assert_eq!(pod, expected);
}

#[test]
fn last_of_duplicate_keys_counts() {
    assert_eq!(parse("a: 1\nb: 2\na: 3").unwrap(), [json!({"a": 3, "b": 2})]);
}

/// Rewrites quantities of resources and size limits as the API server does: `2000m` as `2`, `1024Mi` as `1Gi`, `0.5` as
/// `500m`.
pub(crate) fn normalize_quantities(value: &mut Json) {
    match value {
        Json::Object(members) => {
            for (key, value) in members {
                let amounts = ["limits", "requests"].contains(&key.as_str()).then(|| value.as_object_mut()).flatten();
                for amount in amounts.into_iter().flat_map(Map::values_mut) {
                    let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
                    *amount = canonical(&text).unwrap_or(text).into();
                }
                if key == "sizeLimit" {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    *value = canonical(&text).unwrap_or(text).into();
                }
                normalize_quantities(value);
            }
        }
        Json::Array(items) => items.iter_mut().for_each(normalize_quantities),
        _ => {}
    }
}

/// Rewrites a quantity as the API server does. `None` means that the string is not a quantity, or that the quantity is
/// too large or too small for this function.
fn canonical(text: &str) -> Option<String> {
    const BINARY: [&str; 6] = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
    const DECIMAL: [&str; 7] = ["m", "", "k", "M", "G", "T", "P"];
    let end = text.find(|sign: char| !sign.is_ascii_digit() && sign != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = format!("{:0<3}", fraction.trim_end_matches('0'));
    if fraction.len() > 3 {
        return None;
    }
    let mut thousandths: i128 = format!("{whole}{fraction}").parse().ok()?;
    let is_binary = suffix.ends_with('i');
    let (base, suffixes) = if is_binary { (1024_i128, BINARY.as_slice()) } else { (1000_i128, DECIMAL.as_slice()) };
    let index = u32::try_from(suffixes.iter().position(|other| *other == suffix)?).ok()?;
    // The amount is in thousandths of the unit of the first suffix. The first decimal suffix is `m`, a thousandth.
    thousandths = thousandths.checked_mul(base.checked_pow(index)?)?;
    if thousandths % 1000 != 0 {
        return None;
    }
    let mut amount = thousandths / 1000;
    let mut index = 0;
    while amount != 0 && amount % base == 0 && index + 1 < suffixes.len() {
        amount /= base;
        index += 1;
    }
    if amount == 0 {
        return Some("0".to_owned());
    }
    Some(format!("{amount}{}", suffixes[index]))
}

#[test]
fn quantities_are_canonical() {
    let pairs = [
        ("2000m", "2"),
        ("1024Mi", "1Gi"),
        ("0.5", "500m"),
        ("0", "0"),
        ("1500m", "1500m"),
        ("1000", "1k"),
        ("10Mi", "10Mi"),
    ];
    for (written, expected) in pairs {
        assert_eq!(canonical(written).as_deref(), Some(expected), "{written}");
    }
    assert_eq!(canonical("much"), None);
}

/// Returns the string at a JSON pointer.
pub(crate) fn string<'j>(value: &'j Json, pointer: &str) -> Option<&'j str> {
    value.pointer(pointer).and_then(Json::as_str)
}

/// Applies a patch. Patches of some peers add to missing lists or replace missing values. Therefore missing parents are
/// created, and replacing a missing value adds it.
pub(crate) fn patch(object: &mut Json, operations: &Json) -> Result<(), String> {
    let operations = match operations {
        Json::Null => return Ok(()),
        Json::Array(operations) => operations,
        _ => return Err("the patch is not a list of operations".to_owned()),
    };
    for operation in operations {
        let mut operation = operation.clone();
        let path = operation["path"].as_str().ok_or("an operation has no path")?.to_owned();
        if operation["op"] == "replace" && object.pointer(&path).is_none() {
            operation["op"] = json!("add");
        }
        if operation["op"] == "add" {
            create_parents(object, &path);
        }
        let operation = serde_json::from_value(operation).map_err(|error| error.to_string())?;
        json_patch::patch(object, &[operation]).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Creates the missing parents of a path.
fn create_parents(object: &mut Json, path: &str) {
    let tokens: Vec<&str> = path.split('/').skip(1).collect();
    let mut node = object;
    for pair in tokens.windows(2) {
        let is_index = pair[1] == "-" || pair[1].parse::<usize>().is_ok();
        let key = pair[0].replace("~1", "/").replace("~0", "~");
        let next = match node {
            Json::Object(members) => members.entry(key).or_insert_with(|| if is_index { json!([]) } else { json!({}) }),
            Json::Array(items) => match key.parse::<usize>().ok().and_then(|index| items.get_mut(index)) {
                Some(item) => item,
                None => return,
            },
            _ => return,
        };
        node = next;
    }
}

/// Returns the longest of `names` that is a prefix of `other`, such as `hello` for `hello-tproxy`, and the rest of
/// `other` without the separator.
pub(crate) fn longest_prefix<'n, 'o>(names: &'n [String], other: &'o str) -> Option<(&'n str, &'o str)> {
    let suffix_of = |name: &'n String| {
        let rest = other.strip_prefix(name.as_str())?;
        (rest.is_empty() || rest.starts_with(['-', '.', '_']))
            .then(|| (name.as_str(), rest.trim_start_matches(['-', '.', '_'])))
    };
    names.iter().filter_map(suffix_of).max_by_key(|(name, _)| name.len())
}

#[test]
fn reports_unread_folders() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unread");
    let levels = (0..=MAX_DEPTH).map(|_| "a");
    let deepest: PathBuf = levels.collect();
    std::fs::create_dir_all(folder.join(&deepest)).unwrap();
    let reason = format!("only {MAX_DEPTH} levels of folders are read");
    assert_eq!(unread_folders(&folder), [(deepest.to_string_lossy().into_owned(), reason)]);
    assert_eq!(unread_folders(&folder.join("nowhere")).len(), 1);
}
