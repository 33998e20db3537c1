use pillion_engine::profile::{NoParents, ProfileSource};
use serde_json::json;

use super::*;

const GOOD: &str = "\
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata:
  name: NAME
spec:
  template:
    spec:
      containers:
      - name: side
        image: nginx:1.29
";

fn good(name: &str) -> String {
    GOOD.replace("NAME", name)
}

/// Loads the profiles from a folder that contains these files. Returns the names of the profiles, and each problem on
/// one line.
fn load(files: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let loaded = profiles_in(&[folder.path().to_owned()], "team-a");
    let prefix = format!("{}/", folder.path().display());
    let lines = loaded.problems.iter().map(|problem| problem.to_string().replace(&prefix, "")).collect();
    (loaded.profiles.iter().map(|profile| profile.name().to_string()).collect(), lines)
}

#[test]
fn finds_profiles_in_order_of_files() {
    let tenant = good("own").replace("Cluster", "").replace("  name: own", "  name: own\n  namespace: team-b");
    let without = good("here").replace("Cluster", "");
    let list = format!("apiVersion: v1\nkind: List\nitems:\n- {}", good("listed").replace('\n', "\n  ").trim_end());
    let (names, problems) = load(&[
        ("a.yaml", &format!("kind: ConfigMap\n---\n{}---\n{tenant}", good("first"))),
        ("b.yaml", &list),
        ("c.yml", &without),
        ("d.yaml", "# nothing but a comment\n"),
    ]);
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(names, ["first", "team-b/own", "listed", "team-a/here"]);
}

#[test]
fn exported_revision_loads_as_its_profile() {
    let name = ProfileName::namespaced("team-b", "own");
    let document = &yaml::documents(&good("own")).unwrap()[0];
    let spec: ProfileSpec = serde_json::from_value(document.get("spec").unwrap().to_value()).unwrap();
    let flattened = ProfileSource::Author(&spec, &NoParents).flatten(&name).unwrap();
    let revision = flattened.to_revision(&name, Some(1), None).unwrap();
    let object = |spec: &RevisionSpec| {
        let metadata = json!({"name": "own-0123456789", "namespace": "team-b"});
        json!({"apiVersion": API_VERSION, "kind": "ProfileRevision", "metadata": metadata, "spec": spec}).to_string()
    };
    let (names, problems) = load(&[("a.json", &object(&revision))]);
    assert_eq!((names, problems), (vec!["team-b/own".to_owned()], Vec::new()));

    let own = good("own").replace("Cluster", "").replace("  name: own", "  name: own\n  namespace: team-b");
    let (_, problems) = load(&[("a.json", &object(&revision)), ("b.yaml", &own)]);
    assert!(problems[0].contains("b.yaml:4:9: there is another profile team-b/own"), "{problems:?}");
    let forged = RevisionSpec { text: revision.text.replace("1.29", "1.30"), ..revision };
    let (names, problems) = load(&[("a.json", &object(&forged))]);
    assert!(names.is_empty() && problems[0].contains("the hash of its content is"), "{problems:?}");
}

#[test]
fn reports_mistakes_with_position_of_object() {
    for (text, line) in [
        (good("Upper"), "p.yaml:4:9: metadata.name: `Upper` is not a valid Kubernetes name"),
        (good("x").replace("  name: x", "  labels: {}"), "p.yaml:4:3: metadata.name is missing"),
        (good("x").replace("  name: x", "  name: 5"), "p.yaml:4:9: metadata.name: expected a string"),
        (good("x").replace("  name: x", "  name: x\n  namespace: z"), "p.yaml:5:14: a ClusterInjectionProfile has no"),
        (
            good("x").replace("Cluster", "Clustr"),
            "p.yaml:2:7: `ClustrInjectionProfile` is not a kind of pillion.dev (did you mean",
        ),
        (good("x").replace("v1alpha1", "v1"), "p.yaml:1:13: apiVersion `pillion.dev/v1` is not supported"),
        (
            good("x").replace("spec:\n  template", "spce:\n  template"),
            "p.yaml:5:1: unknown field `spce` (did you mean `spec`?)",
        ),
        (
            good("x").replace("  template:", "  tempalte:"),
            "p.yaml:6:3: unknown field `tempalte` (did you mean `template`?)",
        ),
        (good("x").replace("  name: x", "  name: x\n  name: y"), "p.yaml:5:3: the key `name` occurs twice"),
        ("kind: Pod\n".to_owned(), ": contains no ClusterInjectionProfile or InjectionProfile"),
    ] {
        let (names, problems) = load(&[("p.yaml", &text)]);
        assert_eq!(names, Vec::<String>::new(), "{text}");
        assert!(problems.first().is_some_and(|problem| problem.contains(line)), "{line}: {problems:#?}");
    }
}

#[test]
fn broken_file_hides_no_others_names_are_unique() {
    let (names, problems) =
        load(&[("a.yaml", &good("one")), ("b.yaml", "a: [\n"), ("c.yaml", &good("one")), ("d.yaml", &good("two"))]);
    assert_eq!(names, ["one", "two"]);
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert!(problems[0].starts_with("b.yaml:"), "{problems:#?}");
    assert!(problems[1].starts_with("c.yaml:4:9: there is another profile one"), "{problems:#?}");
}

#[test]
fn keeps_texts_on_request_in_file_order() {
    let folder = tempfile::tempdir().unwrap();
    let tenants = |name: &str| good(name).replace("Cluster", "");
    let child = |name: &str| {
        let text = good(name);
        let (head, _) = text.split_once("spec:").unwrap();
        format!("{head}spec:\n  extends:\n    name: root\n")
    };
    let broken = |text: String| text.replace("image: nginx:1.29", "image: ${nobody}");
    for (name, text) in [
        ("a.yaml", child("child")),
        ("b.yaml", tenants("own")),
        (
            "c.yaml",
            broken(child("broken-child") + "  template: {spec: {containers: [{name: x, image: nginx:1.29}]}}\n"),
        ),
        ("d.yaml", broken(tenants("broken-own"))),
        ("e.yaml", broken(good("broken-root"))),
        ("f.yaml", good("root")),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let paths = [folder.path().to_owned()];
    let loaded = profiles_with_texts(&paths);
    let prefix = format!("{}/", folder.path().display());
    let of = |written: &Written| (written.file.replace(&prefix, ""), written.name.to_string());
    let texts: Vec<_> = loaded.texts.iter().map(of).collect();
    let expected = [("a.yaml", "child"), ("b.yaml", "default/own"), ("f.yaml", "root")];
    assert_eq!(texts, expected.map(|(file, name)| (file.to_owned(), name.to_owned())));
    let names: Vec<_> = loaded.profiles.iter().map(|profile| profile.name().to_string()).collect();
    assert_eq!(names, expected.map(|(_, name)| name));
    let places: Vec<_> =
        loaded.problems.iter().map(|problem| (problem.source.name.replace(&prefix, ""), problem.position())).collect();
    let expected = [("c.yaml", 8, 52), ("d.yaml", 10, 18), ("e.yaml", 10, 18)];
    assert_eq!(places, expected.map(|(file, line, column)| (file.to_owned(), Some((line, column)))));
    assert_eq!(profiles(&paths).texts.len(), 0);
}

#[test]
fn names_are_subdomains() {
    for good in ["a", "a-b", "a.b", "0", "nginx"] {
        assert!(is_subdomain(good), "{good}");
    }
    for bad in ["", "-a", "a-", "a..b", "A", "a_b", "a/b", "ü", &"a".repeat(254)] {
        assert!(!is_subdomain(bad), "{bad}");
    }
}

#[test]
fn profile_extends_parent_of_any_file() {
    let child = |name: &str, parent: &str| {
        let text = good(name);
        let (head, _) = text.split_once("spec:").unwrap();
        format!("{head}spec:\n  order: 7\n  extends:\n    name: {parent}\n")
    };
    let own = child("own", "last").replace("Cluster", "");
    let (names, problems) = load(&[
        ("a.yaml", &format!("{own}---\n{}", child("last", "middle"))),
        ("b.yaml", &child("middle", "root")),
        ("c.yaml", &good("root")),
    ]);
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(names, ["team-a/own", "last", "middle", "root"]);

    let (names, problems) = load(&[
        ("a.yaml", &child("astray", "rot")),
        ("b.yaml", &child("on-broken", "broken")),
        ("c.yaml", &child("on-unreadable", "unreadable")),
        ("d.yaml", &good("broken").replace("        image: nginx:1.29\n", "")),
        ("e.yaml", &good("unreadable").replace("  template:", "  tempalte:")),
        ("f.yaml", &child("one", "two")),
        ("g.yaml", &child("two", "one")),
        ("root.yaml", &good("root")),
    ]);
    assert_eq!(names, ["root"]);
    for (problem, expected) in problems.iter().zip([
        "a.yaml:8:11: spec.extends.name: there is no cluster profile \"rot\" (did you mean \"root\"?)",
        "b.yaml:8:11: spec.extends.name: the cluster profile \"broken\" is invalid",
        "c.yaml:8:11: spec.extends.name: the cluster profile \"unreadable\" is invalid",
        "d.yaml:9:9: spec.template.spec.containers[0]: ",
        "e.yaml:6:3: unknown field `tempalte`",
        "f.yaml:8:11: spec.extends.name: a profile cannot extend itself: one -> two -> one",
        "g.yaml:8:11: spec.extends.name: a profile cannot extend itself: two -> one -> two",
    ]) {
        assert!(problem.starts_with(expected), "{expected:?}: {problems:#?}");
    }
    assert_eq!(problems.len(), 7, "{problems:#?}");
}

#[test]
fn rejects_profile_above_storage_limits() {
    let with = |name: &str, count| {
        let head =
            format!("apiVersion: pillion.dev/v1alpha1\nkind: ClusterInjectionProfile\nmetadata: {{name: {name}}}\n");
        format!("{head}spec:\n  validations:\n{}", "  - {expression: 'true'}\n".repeat(count))
    };
    let (names, problems) = load(&[("a.yaml", &with("long", 65)), ("b.yaml", &with("fits", 64))]);
    assert_eq!(names, ["fits"], "{problems:#?}");
    assert_eq!(problems.len(), 1, "{problems:#?}");
    assert!(
        problems[0].contains("spec.validations: there are 65 items, and at most 64 can be stored"),
        "{problems:#?}"
    );
}

#[test]
fn folder_has_files_and_those_one_level_below() {
    let root = tempfile::tempdir().unwrap();
    for file in [
        "top.yaml",
        "notes.md",
        ".hidden.yaml",
        "a/p.yml",
        "a/q.json",
        "a/tests/case.yaml",
        "tests/pod.yaml",
        "..data/top.yaml",
        "b/c/deep.yaml",
    ] {
        let file = root.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }
    let names = |path: &Path| -> Vec<String> {
        let found = files(path).unwrap();
        found.iter().map(|file| file.strip_prefix(root.path()).unwrap().display().to_string()).collect()
    };
    assert_eq!(names(root.path()), ["a/p.yml", "a/q.json", "top.yaml"]);
    assert_eq!(names(&root.path().join("a")), ["a/p.yml", "a/q.json"]);
    assert_eq!(names(&root.path().join("notes.md")), ["notes.md"]);
    assert!(files(&root.path().join("nowhere")).is_err());
}
