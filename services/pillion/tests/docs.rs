//! Runs the commands in the README and in the docs, and checks their links.
//!
//! Every `console` block is a session that must print the output in the block. It runs in a folder that contains files
//! from the preceding `yaml` blocks: a block becomes a file if it starts with a comment that contains a file name. In
//! `sh` blocks, the commands that need no cluster are run, except those for all shipped profiles, and `src/cli.rs`
//! parses all `pillion` commands. The tests in `e2e` run the commands of `docs/break-glass.md`, `held.md`,
//! `install.md`, `tutorial.md`, `tenancy.md` and the runbooks. A test in `node` runs those of `docs/quickstart.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pillion_testkit::tools;

/// A fenced block of a Markdown file.
struct Block {
    language: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn blocks(file: &Path) -> Vec<Block> {
    let text = fs::read_to_string(file).unwrap();
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else { continue };
        let indent = line.len() - line.trim_start().len();
        let body: Vec<_> = lines
            .by_ref()
            .take_while(|line| line.trim() != "```")
            .map(|line| line.get(indent..).unwrap_or_default())
            .collect();
        blocks.push(Block { language: language.to_owned(), text: body.join("\n") + "\n" });
    }
    blocks
}

/// Returns all Markdown files of the documentation.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut documents =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root.join(name)).to_vec();
    for folder in ["charts", "dashboards", "deploy", "docs", "load-tests", "profiles"] {
        let mut folders = vec![root.join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    documents.push(path);
                }
            }
        }
    }
    documents
}

/// Runs the sessions of a document. Returns their number.
fn run_sessions(document: &Path) -> usize {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root().join("profiles"), folder.path().join("profiles")).unwrap();
    let mut sessions = 0;
    for block in blocks(document) {
        if block.language == "console" {
            sessions += 1;
            run_session(&block.text, folder.path(), document);
        } else if let Some(name) = block.text.lines().next().and_then(|line| line.strip_prefix("# ")) {
            let is_file = Path::new(name).extension().is_some_and(|extension| extension == "yaml");
            if block.language == "yaml" && is_file {
                let file = folder.path().join(name);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, &block.text).unwrap();
            }
        }
    }
    sessions
}

fn run_session(session: &str, folder: &Path, document: &Path) {
    let program = Path::new(env!("CARGO_BIN_EXE_pillion")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut commands: Vec<(&str, String)> = Vec::new();
    for line in session.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push((command, String::new()));
        } else {
            let (_, expected) = commands.last_mut().expect("a session begins with a command");
            expected.push_str(line);
            expected.push('\n');
        }
    }
    for (command, expected) in commands {
        let output = Command::new("sh").args(["-c", command]).current_dir(folder).env("PATH", &path).output().unwrap();
        // `pillion inject` prints its decision to standard error. A session shows standard output or, if that is empty,
        // standard error.
        let shown = if output.stdout.is_empty() { output.stderr } else { output.stdout };
        let shown = String::from_utf8(shown).unwrap();
        assert_eq!(shown.trim_end(), expected.trim_end(), "{}: $ {command}", document.display());
    }
}

#[test]
fn console_sessions_print_documented_output() {
    let sessions: usize = documents().iter().map(|document| run_sessions(document)).sum();
    assert!(sessions >= 2, "the README has at least two sessions, found {sessions}");
}

#[test]
fn ci_runs_documented_test_command() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let contributing = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let script = fs::read_to_string(root().join(".ci/run")).unwrap();
    let commands: Vec<_> = script
        .lines()
        .filter(|line| {
            !line.is_empty() && !line.starts_with('#') && !line.starts_with("set ") && !line.starts_with("cd ")
        })
        .collect();
    let [command] = commands.as_slice() else { panic!("expected one command, found {commands:?}") };
    assert_eq!(*command, "./justw test");
    for document in [readme, contributing] {
        assert!(document.lines().any(|line| line == *command), "{command} is not in the document");
    }
}

#[test]
fn workflow_runs_tests_and_audit() {
    let workflow = fs::read_to_string(root().join(".github/workflows/test.yaml")).unwrap();
    let workflow: serde_json::Value = serde_saphyr::from_str(&workflow).unwrap();
    let steps = workflow["jobs"]["test"]["steps"].as_array().unwrap();
    let commands: Vec<_> = steps.iter().filter_map(|step| step["run"].as_str()).collect();
    assert_eq!(commands, ["./justw test", "./justw audit"]);
    let recipe = fs::read_to_string(root().join("justfile")).unwrap();
    let (_, recipe) = recipe.split_once("\naudit:\n").unwrap();
    let command = recipe.lines().next().unwrap();
    assert!(command.ends_with("cargo deny --locked check"), "{command:?} does not run all checks, with advisories");
}

/// Compares the README and `deploy/quickstart` with `docs/quickstart.md`, whose commands other tests run.
#[test]
fn readme_quickstart_has_commands_of_page() {
    let page = blocks(&root().join("docs/quickstart.md"));
    for name in ["access-log.yaml", "web.yaml"] {
        let file = fs::read_to_string(root().join("deploy/quickstart").join(name)).unwrap();
        let is_shown = page.iter().any(|block| block.language == "yaml" && block.text == file);
        assert!(is_shown, "docs/quickstart.md does not contain deploy/quickstart/{name} unchanged");
    }
    let commands: BTreeSet<&str> =
        page.iter().filter(|block| block.language == "sh").flat_map(|block| block.text.lines()).collect();
    let readme = blocks(&root().join("README.md"));
    let short = readme.iter().find(|block| block.text.starts_with("kind create cluster\n")).unwrap();
    for line in short.text.lines() {
        let command = line.replace("deploy/quickstart/", "");
        assert!(commands.contains(command.as_str()), "docs/quickstart.md has no command {command}");
    }
}

/// A workload for pages that do not show one, but whose commands need one.
const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: \"web:1\"}]}}
";

/// Prefixes of commands that need no cluster and only print.
const OFFLINE: [&str; 6] =
    ["pillion lint ", "pillion test ", "pillion inject ", "pillion export ", "helm template ", "kubectl kustomize "];

/// Folders of the repository that the commands use.
const FOLDERS: [&str; 5] = ["charts", "dashboards", "deploy", "load-tests", "profiles"];

/// Returns the lines of all `sh` blocks without comments, each with its document.
fn shell_lines() -> Vec<(PathBuf, String)> {
    let mut lines = Vec::new();
    for document in documents() {
        for block in blocks(&document).into_iter().filter(|block| block.language == "sh") {
            let uncommented = block.text.lines().map(|line| line.split(" #").next().unwrap().trim());
            let commands = uncommented.filter(|line| !line.is_empty() && !line.starts_with('#'));
            lines.extend(commands.map(|line| (document.clone(), line.to_owned())));
        }
    }
    lines
}

#[test]
fn offline_commands_in_documents_succeed() {
    let folder = tempfile::tempdir().unwrap();
    for name in FOLDERS {
        std::os::unix::fs::symlink(root().join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("deployment.yaml"), DEPLOYMENT).unwrap();
    let programs = [
        PathBuf::from(env!("CARGO_BIN_EXE_pillion")),
        tools::program("helm").unwrap(),
        tools::program("kubectl").unwrap(),
    ];
    let mut path: Vec<_> = programs.iter().map(|program| program.parent().unwrap().to_owned()).collect();
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let path = std::env::join_paths(path).unwrap();
    let mut done = BTreeSet::new();
    for (document, line) in shell_lines() {
        let is_offline = OFFLINE.iter().any(|command| line.starts_with(command));
        // Skips `pillion test profiles`, which takes minutes, and whose flag `--update` writes into the profiles.
        // tests/test_command.rs runs both.
        let is_of_all = line.split(' ').any(|word| word == "profiles");
        if !is_offline || is_of_all || !done.insert(line.clone()) {
            continue;
        }
        let mut command = Command::new("sh");
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, folder.path());
        }
        let output = command.args(["-c", &line]).current_dir(folder.path()).env("PATH", &path).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: $ {line}\n{stderr}", document.display());
    }
    assert!(done.len() > 50, "found {} commands", done.len());
}

#[test]
fn page_shows_profiles_to_copy() {
    let mut shown: Vec<_> = blocks(&root().join("docs/profiles-to-copy.md"))
        .into_iter()
        .filter(|block| block.language == "yaml")
        .map(|block| block.text)
        .collect();
    let folders = fs::read_dir(root().join("profiles/minimal")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = folders.map(|path| fs::read_to_string(path.join("profile.yaml")).unwrap()).collect();
    for file in &files {
        assert!(file.lines().count() <= 20, "more than 20 lines: {file}");
    }
    assert_eq!(files.len(), 10);
    shown.sort();
    files.sort();
    assert_eq!(shown, files);
}

#[test]
fn shell_commands_name_existing_files() {
    for (document, line) in shell_lines() {
        for word in line.split([' ', '=', '(', ')', '<', '\'']) {
            let is_of_repository = word.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder));
            assert!(!is_of_repository || root().join(word).exists(), "{}: {line}: no {word}", document.display());
        }
    }
}

/// Returns the pages of the site, each with its path in `docs`. These are all files in `docs` except the list of pages.
fn pages() -> Vec<(String, PathBuf)> {
    let docs = root().join("docs");
    let name_of = |path: &Path| Some(path.strip_prefix(&docs).ok()?.to_str()?.to_owned());
    let pages = documents().into_iter().filter_map(|path| Some((name_of(&path)?, path)));
    pages.filter(|(name, _)| name != "SUMMARY.md").collect()
}

#[test]
fn lists_of_pages_are_complete() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let list = fs::read_to_string(root().join("docs/README.md")).unwrap();
    let pages = pages();
    for (name, _) in &pages {
        let link = format!("]({name})");
        assert_eq!(summary.matches(&link).count(), 1, "docs/SUMMARY.md must have exactly one link to {name}");
        let is_listed = name.contains('/') || name == "README.md" || list.contains(&link);
        assert!(is_listed, "docs/README.md has no link to {name}");
    }
    assert!(pages.len() > 80, "found {} pages", pages.len());
}

#[test]
fn pages_state_their_audience() {
    let folders = fs::read_dir(root().join("profiles")).unwrap().map(|entry| entry.unwrap().path());
    // Only the folder of short profiles has no README, since docs/profiles-to-copy.md describes them.
    let readmes: Vec<_> = folders.map(|folder| folder.join("README.md")).filter(|path| path.exists()).collect();
    assert!(readmes.len() > 20, "found {} READMEs of profiles", readmes.len());
    // A runbook begins with the meaning of its alert instead. The list of runbooks states the audience of all runbooks.
    let pages = pages().into_iter().filter(|(name, _)| !name.starts_with("runbooks/Pillion")).map(|(_, path)| path);
    for path in pages.chain(readmes) {
        let text = fs::read_to_string(&path).unwrap();
        let first = text.lines().skip(1).find(|line| !line.is_empty()).unwrap_or_default();
        assert!(first.starts_with("For: "), "{} must begin with `For: …`, found {first:?}", path.display());
    }
}

/// Returns a file without its fenced blocks, since links and headings in them do not count.
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

/// Returns the targets of a file's links: `[text](target)` and `[name]: target`.
fn targets(text: &str) -> Vec<String> {
    let prose = without_code(&prose(text));
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let named = prose.lines().filter_map(|line| {
        let (name, target) = line.trim_start().strip_prefix('[')?.split_once("]: ")?;
        (!name.contains(']')).then_some(target)
    });
    inline.chain(named).map(|target| target.trim().to_owned()).collect()
}

/// Returns the anchor that GitHub generates for a heading: letters become lower case, digits, `-` and `_` are kept,
/// blanks become `-`, and all other characters are removed.
fn anchor(heading: &str) -> String {
    // If the heading contains a link, only the link's text becomes part of the anchor.
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

/// Returns the anchors of all headings of a Markdown file.
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

/// Returns a message for each broken link of a file with this content.
fn broken(document: &Path, text: &str) -> Vec<String> {
    let wrong = |target: &String| {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        if path.contains("://") || path.starts_with("mailto:") {
            return None;
        }
        let file =
            if path.is_empty() { document.to_path_buf() } else { document.parent().unwrap_or(document).join(path) };
        if !path.is_empty() && !file.exists() {
            return Some(format!("{target} does not exist"));
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

/// Returns the documents with broken links, each with its messages.
fn all_broken() -> Vec<(PathBuf, Vec<String>)> {
    let read = |document: PathBuf| {
        let text = fs::read_to_string(&document).unwrap();
        let broken = broken(&document, &text);
        (document, broken)
    };
    documents().into_iter().map(read).filter(|(_, broken)| !broken.is_empty()).collect()
}

#[test]
fn links_and_anchors_exist() {
    let broken = all_broken();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Returns a message for each link of the form [`Type::name`](file.rs) whose file does not define `name`.
fn undefined(document: &Path, text: &str) -> Vec<String> {
    let is_undefined = |link: &str| {
        let (name, rest) = link.split_once("`](")?;
        let (target, _) = rest.split_once(')')?;
        let item = name.rsplit("::").next()?;
        let is_name = item.chars().all(|character| character.is_alphanumeric() || character == '_');
        let file = document.parent()?.join(target);
        if !is_name || file.extension().is_none_or(|extension| extension != "rs") {
            return None;
        }
        // A module is defined by the existence of its file.
        let is_module = file.with_extension("").iter().rev().take(2).any(|part| part == item);
        let source = fs::read_to_string(&file).ok()?;
        let words: Vec<_> = source.split(|character: char| !character.is_alphanumeric() && character != '_').collect();
        let kinds = ["fn", "struct", "enum", "trait", "const", "type", "static", "mod"];
        let is_defined = words.windows(2).any(|pair| kinds.contains(&pair[0]) && pair[1] == item);
        (!is_module && !is_defined).then(|| format!("{target} does not define {name}"))
    };
    text.split("[`").skip(1).filter_map(is_undefined).collect()
}

#[test]
fn linked_items_are_defined_in_their_files() {
    for page in documents() {
        let undefined = undefined(&page, &fs::read_to_string(&page).unwrap());
        assert!(undefined.is_empty(), "{}: {undefined:#?}", page.display());
    }
    let page = root().join("docs/page.md");
    let text = "[`Term::lead`](../services/pillion/src/serve/term.rs) [`term`](../services/pillion/src/serve/term.rs) \
                [`Term::led`](../services/pillion/src/serve/term.rs)";
    assert_eq!(undefined(&page, text), ["../services/pillion/src/serve/term.rs does not define Term::led"]);
}

/// Returns the Rust sources in a folder and below it as one text.
fn rust_sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let text = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => rust_sources(&path),
        Some(extension) if extension == "rs" => fs::read_to_string(&path).unwrap(),
        _ => String::new(),
    };
    entries.map(text).collect()
}

/// Returns the names in backticks, such as `Type::name`, that the sources do not define. A name that occurs in quotes
/// in the sources is a value, such as a phase, and is not returned.
fn unknown_names(text: &str, sources: &str) -> Vec<String> {
    /// Names that other crates or the language define: the derive macro of clap, and a keyword.
    const FOREIGN: [&str; 2] = ["Args", "mod"];
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let words: Vec<_> = sources.split(|character: char| !is_name(character)).filter(|word| !word.is_empty()).collect();
    let kinds = ["fn", "struct", "enum", "trait", "const", "type", "static", "mod", "macro_rules"];
    let items = words.windows(2).filter(|pair| kinds.contains(&pair[0])).map(|pair| pair[1]);
    let defined: BTreeSet<_> = items.collect();
    let is_known = |name: &str| {
        let item = name.rsplit("::").next().unwrap_or(name).trim_end_matches('!');
        let is_path = item.is_empty() || !name.chars().all(|character| is_name(character) || ":!".contains(character));
        is_path
            || FOREIGN.contains(&item)
            || defined.contains(item)
            || [format!(" {item}: "), format!("\"{item}\"")].iter().any(|text| sources.contains(text))
    };
    // After splitting at backticks, every second part was in backticks. Parts that are links are checked by
    // `undefined`.
    let parts: Vec<_> = text.split('`').collect();
    let quoted = (1..parts.len()).step_by(2).filter(|index| !parts[index - 1].ends_with('['));
    quoted.map(|index| parts[index]).filter(|name| !is_known(name)).map(str::to_owned).collect()
}

#[test]
fn names_in_recipes_of_architecture_page_exist() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let sources = rust_sources(&root().join("services"));
    let (_, recipes) = page.split_once("## I want to change something").unwrap();
    let (recipes, _) = recipes.split_once("\n## ").unwrap();
    assert_eq!(unknown_names(recipes, &sources), [""; 0]);
    // The sources contain this test, so it must not contain the name itself.
    let unknown = ["nothing", "here"].join("_");
    let text =
        format!("`Term::lead` `Term::led` [`Term::linked`](term.rs) `a/path.rs` `stable` `labelled!` `{unknown}`");
    assert_eq!(unknown_names(&text, &sources), ["Term::led", &unknown]);
}

#[test]
fn reliability_page_lists_nightly_parts() {
    let page = fs::read_to_string(root().join("docs/reliability.md")).unwrap();
    let script = fs::read_to_string(root().join("services/testkit/tools/nightly.sh")).unwrap();
    // The parts for Kubernetes versions are in docs/releases.md, and `gates` is a benchmark.
    let names = script.lines().filter_map(|line| line.strip_prefix("part ")?.split(' ').next());
    let names: BTreeSet<_> = names.filter(|name| *name != "gates").collect();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(rows.collect::<BTreeSet<_>>(), names);
}

/// Returns the names of the modules that a crate's root file declares outside test code.
fn declared_modules(root: &str) -> Vec<&str> {
    let names = root.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'));
    names.filter(|name| *name != "tests").collect()
}

#[test]
fn architecture_page_lists_every_top_level_module() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let mut modules = 0;
    for member in fs::read_dir(root().join("services")).unwrap() {
        let member = member.unwrap();
        let sources = member.path().join("src");
        let file = ["lib.rs", "main.rs"].map(|file| sources.join(file)).into_iter().find(|file| file.exists()).unwrap();
        for module in declared_modules(&fs::read_to_string(&file).unwrap()) {
            let link = format!("| [`{module}`](../services/{}/src/{module}", member.file_name().display());
            assert!(page.contains(&link), "docs/architecture.md has no line for module {module} of {}", file.display());
            modules += 1;
        }
    }
    assert!(modules > 100, "only {modules} modules were found");
}

#[test]
fn broken_links_are_found() {
    let page = root().join("docs/page.md");
    let text = "# One\n\n## `code`, and [a link](LICENSE)'s text\n## One\n\n\
                [a](#one) [b](#one-1) [c](#code-and-a-links-text) [d](cli.md#all-commands) [e](https://example.com/#x)\n\
                `[f](nowhere.md)`\n```sh\n# Two\n[g](nowhere.md)\n```\n[h]: cli.md\n";
    // A link to `LICENSE` from a page in `docs/` is broken, since the file is in the root folder.
    assert_eq!(broken(&page, text), ["LICENSE does not exist"]);
    for (wrong, expected) in [
        ("[x](#two)", "#two has no such heading"),
        ("[x](cli.md#no-such)", "cli.md#no-such has no such heading"),
        ("[x](no.md)", "no.md does not exist"),
        ("[x]: no.md", "no.md does not exist"),
    ] {
        let found = broken(&page, &format!("{}\n{wrong}\n", text.replace("LICENSE", "cli.md")));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{wrong}: {found:?}");
    }
}

/// Returns the files of `docs/comparison`, each with its path in `docs` and its content.
fn comparison_files() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for folder in fs::read_dir(root().join("docs/comparison")).unwrap() {
        let folder = folder.unwrap().path();
        for file in fs::read_dir(&folder).unwrap() {
            let file = file.unwrap().path();
            let name = file.strip_prefix(root().join("docs")).unwrap().to_str().unwrap().to_owned();
            files.insert(name, fs::read_to_string(file).unwrap());
        }
    }
    files
}

#[test]
fn comparison_states_length_of_each_example() {
    let page = fs::read_to_string(root().join("docs/comparison.md")).unwrap();
    for (name, text) in comparison_files() {
        let link = format!("[{}]({name})", text.lines().count());
        assert!(page.contains(&link), "docs/comparison.md has no {link}");
    }
}

#[test]
fn comparison_examples_of_pillion_and_sidecarset_are_valid() {
    for (name, text) in comparison_files() {
        let mut pillion = Command::new(env!("CARGO_BIN_EXE_pillion"));
        let file = root().join("docs").join(&name);
        let output = match name.rsplit('/').next().unwrap() {
            "pillion.yaml" => pillion.arg("lint").arg(&file).output().unwrap(),
            "sidecarset.yaml" => pillion.args(["convert", "sidecarset", "-f"]).arg(&file).output().unwrap(),
            _ => continue,
        };
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // Exit code 1 is allowed, because a profile cannot express the update strategy of a SidecarSet.
        let is_valid = matches!(output.status.code(), Some(0 | 1)) && !stderr.contains("unknown");
        assert!(is_valid, "{name} ({}):\n{stdout}{stderr}\n{text}", output.status);
    }
}

/// Each Kyverno policy must have the same spec as the Kubernetes policy in the same folder, which
/// `tests/e2e/comparison.rs` runs.
#[test]
fn kyverno_examples_equal_policies() {
    let files = comparison_files();
    for (name, kyverno) in files.iter().filter(|(name, _)| name.ends_with("/kyverno.yaml")) {
        let policy = &files[&name.replace("kyverno.yaml", "policy.yaml")];
        let policy = policy.split("---\n").next().unwrap();
        let expected = policy
            .replace("admissionregistration.k8s.io/v1\n", "policies.kyverno.io/v1\n")
            .replace("kind: MutatingAdmissionPolicy", "kind: MutatingPolicy")
            .replace("kind: ValidatingAdmissionPolicy\n", "kind: ValidatingPolicy\n")
            .replace("  reinvocationPolicy: IfNeeded\n", "");
        assert_eq!(kyverno.replace("  validationActions: [Deny]\n", ""), expected, "{name}");
    }
}

/// Returns the names of the profiles to which a page links.
fn linked_profiles(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let below = targets.filter_map(|target| target.trim_start_matches("../").strip_prefix("profiles/"));
    below.filter_map(|path| Some(path.split('/').next()?.to_owned())).collect()
}

/// Returns the pages in `docs/migration` except `README.md`, each with its content.
fn migration_pages() -> Vec<(PathBuf, String)> {
    let paths = fs::read_dir(root().join("docs/migration")).unwrap().map(|entry| entry.unwrap().path());
    let mut migration_pages: Vec<_> = paths.filter(|path| !path.ends_with("README.md")).collect();
    migration_pages.sort();
    migration_pages.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Returns the parameters in all tables whose last column has the heading `parameter`.
fn parameters(text: &str) -> Vec<String> {
    let mut is_of_parameters = false;
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(row) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            is_of_parameters &= line.starts_with('|');
            continue;
        };
        let last = row.rsplit(" | ").next().unwrap_or_default();
        if last == "parameter" {
            is_of_parameters = true;
        } else if is_of_parameters {
            found.extend(last.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

#[test]
fn migration_pages_name_existing_parameters() {
    let mut count = 0;
    for (path, text) in migration_pages() {
        let profiles: BTreeSet<_> = linked_profiles(&text).into_iter().collect();
        let texts = profiles.iter().map(|name| {
            let file = root().join("profiles").join(name).join("profile.yaml");
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        });
        let declared = texts.collect::<Vec<_>>().join("\n");
        for name in parameters(&text) {
            count += 1;
            let is_declared = [", ", "}", "\n"].iter().any(|end| declared.contains(&format!("name: {name}{end}")));
            assert!(is_declared, "{}: none of {profiles:?} has a parameter {name}", path.display());
        }
    }
    assert!(count > 50, "only {count} parameters were found");
}
