//! Runs the cases that adapters create from the peers' files, and prints the results.
//!
//! Resulting objects are compared, not patches. `profiles/<folder>/differences.yaml` explains the intended differences
//! of each case. A second injection must change nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use pillion_cases::{Aspect, Case, Difference, Profiles, missing, run, unequal};
use pillion_engine::profile::{ProfileName, warnings};
use serde_json::{Map, Value as Json, json};

use crate::peers::files;

/// The maximum number of printed differences of a case.
const SHOWN: usize = 12;

/// Creates cases from the files of a peer's folder.
pub(crate) type Adapter = fn(&Path, &ShippedProfiles) -> Vec<PeerCase>;

/// A case of a peer.
pub(crate) struct PeerCase {
    /// The name, which is stable, because files refer to it.
    pub(crate) name: String,
    /// The case, or the reason why it cannot be read.
    pub(crate) ready: Result<RunnableCase, String>,
}

/// A case that can run.
pub(crate) struct RunnableCase {
    /// The available profiles.
    pub(crate) profiles: Profiles,
    /// Alternative cases; one of them must have the expected result. Usually there is a single case.
    pub(crate) cases: Vec<Case>,
    pub(crate) expected: Vec<Expected>,
    /// Whether settings were inferred from the result, or the expected result was guessed, because no file determines
    /// them.
    pub(crate) has_inferred_settings: bool,
    /// The case with inferred settings, for a second attempt if the result differs.
    pub(crate) with_inferred_settings: Option<Case>,
    /// Normalizes both objects before they are compared.
    pub(crate) normalize: Box<dyn Fn(&mut Json)>,
}

impl PeerCase {
    /// Reads a case. If reading panics, the case is reported as unreadable, and the other cases still run.
    pub(crate) fn read(name: impl Into<String>, read: impl FnOnce() -> Result<RunnableCase, String>) -> Self {
        let ready = catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err("it panicked: see above".to_owned()));
        Self { name: name.into(), ready }
    }
}

/// An expected result from the peer. If there are several, the object must match one of them.
pub(crate) enum Expected {
    /// The whole object.
    Object(Json),
    /// A part of the object.
    Part(Json),
    /// A part that the object must not have.
    NotPart(Json),
    /// The object is rejected.
    Denied,
    /// The object is unchanged. If the peer's message is known, the messages to the author must give the same reason.
    LeftAlone(Option<String>),
}

impl RunnableCase {
    pub(crate) fn new(profiles: Profiles, case: Case, expected: Expected) -> Self {
        Self {
            profiles,
            cases: vec![case],
            expected: vec![expected],
            has_inferred_settings: false,
            with_inferred_settings: None,
            normalize: Box::new(|_| {}),
        }
    }

    /// Whether more than one result would pass, or the settings were inferred from the result.
    fn is_loose(&self) -> bool {
        self.has_inferred_settings || self.cases.len() > 1 || self.expected.len() > 1
    }

    pub(crate) fn normalized_by(mut self, normalize: impl Fn(&mut Json) + 'static) -> Self {
        self.normalize = Box::new(normalize);
        self
    }

    /// Returns the differences of the best alternative, the messages to the author, and whether inferred settings
    /// were used.
    fn differences(&self) -> Result<(Vec<Difference>, Vec<String>, bool), String> {
        let mut best: Option<(Vec<Difference>, Vec<String>)> = None;
        for case in &self.cases {
            for expected in &self.expected {
                let found = self.compare(case, expected)?;
                if best.as_ref().is_none_or(|(fewest, _)| found.0.len() < fewest.len()) {
                    best = Some(found);
                }
            }
        }
        let (mut differences, mut messages) = best.ok_or_else(|| "there is nothing to compare".to_owned())?;
        let mut with_inferred_settings = false;
        if let Some(case) = self.with_inferred_settings.as_ref().filter(|_| !differences.is_empty()) {
            for expected in &self.expected {
                let found = self.compare(case, expected)?;
                if found.0.len() < differences.len() {
                    (differences, messages) = found;
                    with_inferred_settings = true;
                }
            }
        }
        Ok((differences, messages, with_inferred_settings))
    }

    fn compare(&self, case: &Case, expected: &Expected) -> Result<(Vec<Difference>, Vec<String>), String> {
        let mut case = case.clone();
        // A case must have an expectation. The actual comparison follows below.
        case.part = Some(json!({}));
        if matches!(expected, Expected::Denied) {
            case.denied = Some(String::new());
        }
        let verdict = run(&case, &self.profiles).map_err(|error| error.to_string())?;
        let normalize = |object: &Json| {
            let mut object = object.clone();
            (self.normalize)(&mut object);
            object
        };
        let found = normalize(&verdict.object);
        let mut differences = verdict.differences;
        let messages = verdict.messages;
        let mut wrong = |expected: &str| {
            let found = Some(messages.join("\n").into());
            differences.push(Difference {
                aspect: Aspect::Message,
                path: String::new(),
                found,
                expected: Some(expected.into()),
            });
        };
        match expected {
            Expected::Denied => {}
            Expected::Object(expected) => differences.extend(unequal(Aspect::Object, &found, &normalize(expected))),
            Expected::Part(part) => differences.extend(missing(Aspect::Object, &found, &normalize(part))),
            Expected::NotPart(part) => {
                if missing(Aspect::Object, &found, &normalize(part)).is_empty() {
                    wrong("an object that has not all of the part");
                }
            }
            Expected::LeftAlone(why) => {
                if let Some(why) = why.as_deref().filter(|why| !gives_reason(&messages, why, &case.object)) {
                    wrong(why);
                }
                let before = normalize(&Json::Object(case.object.clone()));
                differences.extend(unequal(Aspect::Object, &found, &before));
            }
        }
        Ok((differences, messages))
    }
}

/// Whether the messages give the same reason as the peer's message `why`. There must be at least one message. Each word
/// of `why` that has a capital letter and is the name of a field of the object must be in a message. The other words
/// may differ.
fn gives_reason(messages: &[String], why: &str, object: &Map<String, Json>) -> bool {
    let words = why.split(|sign: char| !sign.is_ascii_alphanumeric());
    let mut fields =
        words.filter(|word| word.contains(|sign: char| sign.is_ascii_uppercase()) && has_field(object, word));
    !messages.is_empty() && fields.all(|field| messages.iter().any(|message| message.contains(field)))
}

/// Whether an object, or any object nested in it, has a field.
fn has_field(members: &Map<String, Json>, name: &str) -> bool {
    let is_below = |value: &Json| match value {
        Json::Object(members) => has_field(members, name),
        Json::Array(items) => items.iter().filter_map(Json::as_object).any(|members| has_field(members, name)),
        _ => false,
    };
    members.contains_key(name) || members.values().any(is_below)
}

#[test]
fn reason_names_fields_of_peers_message() {
    let pod = json!({"spec": {"hostNetwork": true, "containers": [{"name": "a", "imagePullPolicy": "Never"}]}});
    let gives = |messages: &[&str], why: &str| {
        let messages: Vec<String> = messages.iter().map(|message| (*message).to_owned()).collect();
        gives_reason(&messages, why, pod.as_object().unwrap())
    };
    assert!(gives(&["uses hostNetwork"], "hostNetwork is enabled, see Values.hostPort"));
    assert!(gives(&["has a proxy"], "pod has a sidecar injected already"));
    assert!(!gives(&["has a proxy"], "hostNetwork is enabled"));
    assert!(!gives(&["has a proxy"], "imagePullPolicy is set"));
    assert!(!gives(&[], "pod has a sidecar injected already"));
}

/// The shipped profiles.
pub(crate) struct ShippedProfiles(Vec<ShippedProfile>);

struct ShippedProfile {
    folder: String,
    name: String,
    spec: Json,
}

impl ShippedProfiles {
    /// Loads `profiles/*/profile.yaml`.
    pub(crate) fn load() -> Self {
        let mut all = Vec::new();
        for folder in folders() {
            let file = folder.join("profile.yaml");
            for document in files::documents(&file).into_iter().flatten() {
                let name = files::string(&document, "/metadata/name").unwrap().to_owned();
                all.push(ShippedProfile { folder: files::name(&folder), name, spec: document["spec"].clone() });
            }
        }
        assert!(!all.is_empty(), "no profiles were found");
        Self(all)
    }

    /// Returns the names of the profiles in folders with this prefix.
    pub(crate) fn names(&self, prefix: &str) -> Vec<String> {
        self.0.iter().filter(|profile| profile.folder.starts_with(prefix)).map(|profile| profile.name.clone()).collect()
    }

    /// Returns all profiles. A case selects the ones that it uses.
    pub(crate) fn all(&self) -> Profiles {
        Profiles::new(self.0.iter().map(|profile| profile_from(&profile.name, &profile.spec)))
    }

    /// Returns a parameter of a profile or of its parents.
    pub(crate) fn parameter(&self, profile: &str, parameter: &str) -> Option<&Json> {
        let shipped = self.0.iter().find(|shipped| shipped.name == profile)?;
        let mut parameters = shipped.spec["parameters"].as_array().into_iter().flatten();
        let parent = files::string(&shipped.spec, "/extends/name").filter(|parent| *parent != profile);
        parameters.find(|found| found["name"] == parameter).or_else(|| self.parameter(parent?, parameter))
    }

    /// Returns the warnings that the profiles' author would get.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut messages = Vec::new();
        for profile in &self.0 {
            let (_, spec) = profile_from(&profile.name, &profile.spec);
            messages.extend(warnings(&spec).into_iter().map(|diagnostic| format!("{}: {diagnostic}", profile.name)));
        }
        messages
    }
}

/// Converts a cluster profile's name and its spec to the types that the engine uses.
pub(crate) fn profile_from(name: &str, spec: &Json) -> (ProfileName, pillion_api::profile::ProfileSpec) {
    let spec = serde_json::from_value(spec.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    (ProfileName::cluster(name), spec)
}

/// Returns the folders of profiles, sorted.
fn folders() -> Vec<PathBuf> {
    let profiles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
    let mut folders: Vec<_> = std::fs::read_dir(profiles).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("profile.yaml").is_file());
    folders.sort();
    folders
}

/// Returns the explained differences by case, from `differences.yaml` in the folders with this prefix.
pub(crate) fn explained(prefix: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for folder in folders().into_iter().filter(|folder| files::name(folder).starts_with(prefix)) {
        let file = folder.join("differences.yaml");
        let documents = if file.exists() { files::documents(&file).unwrap() } else { Vec::new() };
        for document in documents {
            let read: BTreeMap<String, String> =
                serde_json::from_value(document).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            all.extend(read);
        }
    }
    all
}

/// Creates a case for a pod.
pub(crate) fn case(profiles: &[String], pod: Json) -> Case {
    let Json::Object(object) = pod else { panic!("the pod must be a map") };
    Case { name: "a case of a peer's".to_owned(), profiles: Some(profiles.to_vec()), object, ..Case::default() }
}

/// Sets a parameter, if the profile has it. If not, the setting does not affect the profile.
pub(crate) fn set(case: &mut Case, shipped: &ShippedProfiles, profile: &str, parameter: &str, value: Json) {
    if shipped.parameter(profile, parameter).is_some() {
        case.parameters.entry(profile.to_owned()).or_default().insert(parameter.to_owned(), value);
    }
}

/// Sets a parameter, and converts the value to its declared type.
pub(crate) fn set_typed(case: &mut Case, shipped: &ShippedProfiles, profile: &str, parameter: &str, value: &Json) {
    if let Some(declared) = shipped.parameter(profile, parameter) {
        set(case, shipped, profile, parameter, typed(value, declared));
    }
}

/// Sets a parameter of all profiles that have it, in folders with this prefix.
///
/// # Errors
///
/// Fails if no profile has the parameter.
pub(crate) fn set_all(
    case: &mut Case,
    shipped: &ShippedProfiles,
    prefix: &str,
    parameter: &str,
    value: &Json,
) -> Result<(), String> {
    let mut is_known = false;
    for profile in shipped.names(prefix) {
        if let Some(declared) = shipped.parameter(&profile, parameter) {
            is_known = true;
            set(case, shipped, &profile, parameter, typed(value, declared));
        }
    }
    if is_known { Ok(()) } else { Err(format!("no profile has a parameter {parameter}")) }
}

/// Converts a value to the declared type of a parameter or of a list's items. Charts use strings for most values.
fn typed(value: &Json, declared: &Json) -> Json {
    match (declared["type"].as_str(), value) {
        (Some("string"), Json::Bool(_) | Json::Number(_)) => value.to_string().into(),
        (Some("integer" | "number" | "boolean"), Json::String(text)) => {
            serde_json::from_str(text).unwrap_or_else(|_| value.clone())
        }
        (Some("list"), Json::String(text)) => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            items.map(|item| typed(&item.into(), &declared["items"])).collect()
        }
        (Some("list"), Json::Array(items)) => items.iter().map(|item| typed(item, &declared["items"])).collect(),
        _ => value.clone(),
    }
}

/// Returns labels or annotations as strings.
pub(crate) fn annotations(map: Option<&Map<String, Json>>) -> BTreeMap<String, String> {
    let text = |value: &Json| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    map.into_iter().flatten().map(|(key, value)| (key.clone(), text(value))).collect()
}

/// The results of a peer's cases.
pub(crate) struct Results {
    peer: &'static str,
    cases: usize,
    equal: usize,
    /// Names of equal cases that are loose: several results would have passed, or settings were inferred.
    loose: Vec<String>,
    explained: Vec<(String, String)>,
    /// The names of failed cases, each with the reason.
    failed: Vec<(String, String)>,
    /// Cases that are equal although a difference is explained. An explained case that the folder does not have is not
    /// in this list.
    unneeded: Vec<String>,
    at_least: Option<usize>,
}

impl Results {
    pub(crate) fn of(peer: &'static str, cases: Vec<PeerCase>, explained: &BTreeMap<String, String>) -> Self {
        let mut tally = Self {
            peer,
            cases: cases.len(),
            equal: 0,
            loose: Vec::new(),
            explained: Vec::new(),
            failed: Vec::new(),
            unneeded: Vec::new(),
            at_least: None,
        };
        for case in cases {
            let reason = explained.get(&case.name);
            let (outcome, with_inferred_settings) = outcome(&case);
            if outcome.is_none() && (with_inferred_settings || case.ready.as_ref().is_ok_and(RunnableCase::is_loose)) {
                tally.loose.push(case.name.clone());
            }
            match (outcome, reason) {
                (None, None) => tally.equal += 1,
                (None, Some(_)) => {
                    tally.equal += 1;
                    tally.unneeded.push(format!("{}: it is equal", case.name));
                }
                (Some(_), Some(reason)) => tally.explained.push((case.name, reason.clone())),
                (Some(why), None) => tally.failed.push((case.name, why)),
            }
        }
        tally
    }

    /// Requires at least this number of equal cases, and that every explained case differs.
    pub(crate) fn require(&mut self, equal: usize) {
        self.at_least = Some(equal);
    }

    /// Returns a line for each failed case with the first line of the reason, a line for each loose case, and the
    /// number of equal cases.
    pub(crate) fn lines(&self) -> Vec<String> {
        let first =
            |why: &str| why.lines().next().unwrap_or_default().split(" at line").next().unwrap_or_default().to_owned();
        let failed = self.failed.iter().map(|(name, why)| format!("{}/{name}: {}", self.peer, first(why)));
        let loose = self.loose.iter().map(|name| format!("{}/{name}: loose", self.peer));
        failed.chain(loose).chain([format!("{}: {} of {} are equal", self.peer, self.equal, self.cases)]).collect()
    }

    pub(crate) fn passes(&self) -> bool {
        let as_known = self.at_least.is_none_or(|least| self.equal >= least && self.unneeded.is_empty());
        self.failed.is_empty() && as_known
    }
}

/// Returns the reason why a case differs, or `None` if it is equal, and whether inferred settings were used.
fn outcome(case: &PeerCase) -> (Option<String>, bool) {
    let ready = match &case.ready {
        Ok(ready) => ready,
        Err(error) => return (Some(format!("it cannot be read: {error}")), false),
    };
    let compared = catch_unwind(AssertUnwindSafe(|| ready.differences()));
    match compared {
        Err(_) => (Some("it panicked: see above".to_owned()), false),
        Ok(Err(error)) => (Some(format!("it cannot be run: {error}")), false),
        Ok(Ok((differences, _, with_inferred_settings))) if differences.is_empty() => (None, with_inferred_settings),
        Ok(Ok((differences, messages, _))) => {
            let mut text = String::new();
            for difference in differences.iter().take(SHOWN) {
                let _ = writeln!(text, "{difference}");
            }
            let _ = writeln!(text, "{} differences; message to the author: {messages:?}", differences.len());
            (Some(text), false)
        }
    }
}

/// Returns the counts of each peer as JSON.
pub(crate) fn json(tallies: &[Results]) -> Json {
    let counts = |tally: &Results| {
        json!({
            "cases": tally.cases, "equal": tally.equal, "explained": tally.explained.len(), "failed": tally.failed.len(),
        })
    };
    tallies.iter().map(|tally| (tally.peer.to_owned(), counts(tally))).collect::<Map<_, _>>().into()
}

pub(crate) fn table(tallies: &[Results]) -> String {
    let mut text =
        format!("{:<10} {:>6} {:>6} {:>6} {:>10} {:>7}\n", "peer", "cases", "equal", "loose", "explained", "failed");
    for tally in tallies {
        let Results { peer, cases, equal, loose, explained, failed, .. } = tally;
        let (loose, explained, failed) = (loose.len(), explained.len(), failed.len());
        let _ = writeln!(text, "{peer:<10} {cases:>6} {equal:>6} {loose:>6} {explained:>10} {failed:>7}");
    }
    let _ = writeln!(
        text,
        "\nloose: equal cases whose files do not determine the input or the result, so that one equal pair is"
    );
    let _ = writeln!(text, "enough, or whose settings were inferred from the result.");
    for tally in tallies {
        for name in &tally.loose {
            let _ = writeln!(text, "loose {}/{name}", tally.peer);
        }
    }
    for tally in tallies {
        for (name, reason) in &tally.explained {
            let _ = writeln!(text, "\nexplained {}/{name}: {reason}", tally.peer);
        }
        for (name, why) in &tally.failed {
            let _ = writeln!(text, "\nFAILED {}/{name}", tally.peer);
            for line in why.lines() {
                let _ = writeln!(text, "  {line}");
            }
        }
        for unneeded in &tally.unneeded {
            let _ = writeln!(text, "\nneedless explanation of {}/{unneeded}", tally.peer);
        }
        if let Some(least) = tally.at_least.filter(|least| tally.equal < *least) {
            let _ = writeln!(text, "\n{}: {} are equal, expected at least {least}", tally.peer, tally.equal);
        }
    }
    text
}
