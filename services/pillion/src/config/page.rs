//! Tests that the examples of policies in `docs` work, and that no flag reads an environment variable of another
//! program.

use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};

use super::read::{Overrides, from_text, lines};
use super::{ControllerPolicy, WebhookPolicy, settings};
use crate::cli::Arguments;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Returns the policies of this kind in the documentation: their names and texts.
fn examples(kind: &str) -> Vec<(String, String)> {
    let mut pages: Vec<_> = std::fs::read_dir(docs()).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    let (kind, mut found) = (format!("kind: {kind}\n"), Vec::new());
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        let policies = blocks.filter(|block| block.contains(&kind) && !block.starts_with("# wrong"));
        found.extend(policies.map(|block| (name.clone(), block.to_owned())));
    }
    found
}

#[test]
fn every_policy_on_a_page_can_be_used() {
    let examples = examples("WebhookPolicy");
    assert!(examples.len() >= 2, "{examples:?}");
    for (page, text) in examples {
        if let Err(problems) = from_text::<WebhookPolicy>(Path::new(&page), &text, &Overrides::default()) {
            panic!("{}", lines(&problems));
        }
    }
    let controllers = self::examples("ControllerPolicy");
    assert!(!controllers.is_empty());
    for (page, text) in controllers {
        if let Err(problems) = from_text::<ControllerPolicy>(Path::new(&page), &text, &Overrides::default()) {
            panic!("{}", lines(&problems));
        }
    }
}

#[test]
fn the_page_of_guardrails_shows_all_defaults() {
    let examples = examples("WebhookPolicy");
    let (page, text) = examples.iter().find(|(page, _)| page == "guardrails.md").unwrap();
    let policy: WebhookPolicy = from_text(Path::new(page), text, &Overrides::default()).unwrap();
    assert_eq!(policy, WebhookPolicy::default());
    let keys = settings::SETTINGS.into_iter().filter_map(|setting| setting.path.strip_prefix("guardrails."));
    for key in keys {
        assert!(text.lines().any(|line| line.trim_start().starts_with(&format!("{key}:"))), "{key}");
    }
}

/// Every environment variable of a flag has a known prefix, so that the page of flags lists them all.
#[test]
fn every_variable_has_a_prefix_that_says_whose_it_is() {
    fn check(command: &Command) {
        for argument in command.get_arguments() {
            let Some(name) = argument.get_env() else { continue };
            let name = name.to_string_lossy();
            assert!(name.starts_with("PILLION_") || name.starts_with("OTEL_"), "{name}");
        }
        command.get_subcommands().for_each(check);
    }
    check(&Arguments::command());
}
