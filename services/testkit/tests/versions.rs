//! Checks the list of tests that fail on older Kubernetes versions.

use std::fs;
use std::path::Path;

/// Returns the names of tests and modules in a nextest filter, such as `held::` and `export::name`.
fn selected(filter: &str) -> Vec<&str> {
    let names = filter.split("test(").skip(1).filter_map(|rest| rest.split_once(')'));
    names.map(|(name, _)| name.trim_matches(['/', '^', '='])).collect()
}

#[test]
fn list_of_versions_names_existing_tests() {
    let services = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let list = fs::read_to_string(services.join("testkit/tools/versions.txt")).unwrap();
    let mut number = 0;
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let filter = line.split(';').nth(1).unwrap();
        for name in selected(filter) {
            let (module, test) = name.split_once("::").unwrap();
            let source = fs::read_to_string(services.join(format!("pillion/tests/e2e/{module}.rs")));
            let source = source.unwrap_or_else(|error| panic!("no module {module}: {error}"));
            assert!(test.is_empty() || source.contains(&format!("fn {test}()")), "there is no test {name}");
            number += 1;
        }
    }
    assert!(number >= 5, "only {number} tests are listed");
}
