//! Checks that the modules of every crate form an acyclic graph. A reader of `lib.rs` or `main.rs` can then read the
//! modules from top to bottom.
//!
//! A top-level module uses only modules whose `mod` line is above its own. Submodules of one folder may be in any
//! order, but must not form cycles. A parent and its submodules may use each other. Test code is exempt.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use proc_macro2::{Group, TokenStream, TokenTree};

/// The parts of a path between `::`, for a module's path or a path in source code.
type Names = Vec<String>;

/// A function that returns the content of a source file, or `None` if there is no such file.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// A module outside test code.
#[derive(Default)]
struct Module {
    /// Names of the submodules, in the order of their `mod` lines.
    children: Names,
    /// The names that the module imports, each with the path of the imported item.
    imports: BTreeMap<String, Names>,
    /// The paths that the module's code mentions, each with its file and line.
    uses: Vec<(String, Names)>,
}

/// The modules of one crate by path. The path of the root module is empty.
#[derive(Default)]
struct Crate(BTreeMap<Names, Module>);

/// A path as written in source code. `name` is its last part or, if the path ends in `as`, the new name.
struct Found {
    line: usize,
    path: Names,
    name: String,
}

/// Which submodules of one module use which others: pairs of the user and the used submodule, with the file and line of
/// each use.
type Edges<'a> = BTreeMap<(&'a str, &'a str), BTreeSet<&'a str>>;

impl Crate {
    fn read(root: &Path, read: Read) -> Result<Self> {
        let mut modules = Self::default();
        modules.add_file(&[], root, root.parent().context("the root file has no folder")?, read)?;
        Ok(modules)
    }

    /// Adds the module in `file`. The files of its submodules are in `folder`.
    fn add_file(&mut self, module: &[String], file: &Path, folder: &Path, read: Read) -> Result<()> {
        let text = read(file).with_context(|| format!("cannot read {}", file.display()))?;
        let tokens = text.parse().map_err(|error| anyhow!("{}: {error}", file.display()))?;
        self.add_tokens(module, file, folder, tokens, read)
    }

    fn add_tokens(&mut self, at: &[String], file: &Path, folder: &Path, tokens: TokenStream, read: Read) -> Result<()> {
        self.0.entry(at.to_vec()).or_default();
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = tokens.as_slice();
        while let [first, after @ ..] = rest {
            let (here, keyword) = (rest, first.to_string());
            rest = after;
            match (keyword.as_str(), after) {
                ("#", [TokenTree::Group(attribute), item @ ..]) if is_test(attribute) => rest = skip_item(item),
                ("mod", [TokenTree::Ident(name), body, after @ ..]) => {
                    let name = name.to_string();
                    let child = [at, std::slice::from_ref(&name)].concat();
                    let folder = folder.join(&name);
                    self.0.entry(at.to_vec()).or_default().children.push(name);
                    if let TokenTree::Group(body) = body {
                        self.add_tokens(&child, file, &folder, body.stream(), read)?;
                    } else {
                        let flat = folder.with_extension("rs");
                        let file = if read(&flat).is_some() { flat } else { folder.join("mod.rs") };
                        self.add_file(&child, &file, &folder, read)?;
                    }
                    rest = after;
                }
                ("use" | "crate" | "super" | "self", _) => {
                    let is_use = keyword == "use";
                    let mut found = Vec::new();
                    rest = read_paths(if is_use { after } else { here }, &[], &mut found);
                    let module = self.0.entry(at.to_vec()).or_default();
                    for Found { line, path, name } in found {
                        let path = from_root(at, &path);
                        module.uses.push((format!("{}:{line}", file.display()), path.clone()));
                        if is_use {
                            module.imports.insert(name, path);
                        }
                    }
                }
                _ => {
                    if let TokenTree::Group(group) = first {
                        self.add_tokens(at, file, folder, group.stream(), read)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the path of the module that contains the item at `path`. Resolves imported names to the modules that
    /// define the items.
    fn resolve(&self, path: &[String]) -> Names {
        let mut path = path.to_vec();
        // The limit ends the loop if names import each other in a cycle.
        for _ in 0..16 {
            let depth = (0..path.len()).rev().find(|depth| path.get(..*depth).is_some_and(|p| self.0.contains_key(p)));
            let (module, rest) = path.split_at(depth.unwrap_or_default());
            let whole = self.0.contains_key(&path);
            let imported = rest.first().and_then(|name| self.0.get(module)?.imports.get(name));
            match imported {
                Some(item) if !whole && !item.starts_with(&path) => {
                    path = item.iter().chain(rest.iter().skip(1)).cloned().collect();
                }
                _ => return if whole { path } else { module.to_vec() },
            }
        }
        path
    }

    fn edges<'a>(&'a self, parent: &[String]) -> Edges<'a> {
        let mut edges = Edges::new();
        for (user, module) in self.0.iter().filter(|(user, _)| user.starts_with(parent)) {
            for (place, path) in &module.uses {
                let used = self.resolve(path);
                let child = |of: &[String]| -> Option<&'a str> {
                    let name = of.strip_prefix(parent)?.first()?;
                    self.0.get(parent)?.children.iter().find(|child| *child == name).map(String::as_str)
                };
                if let (Some(user), Some(used)) = (child(user), child(&used))
                    && user != used
                {
                    edges.entry((user, used)).or_default().insert(place);
                }
            }
        }
        edges
    }

    /// Returns a description of each problem with the order of the crate's modules, and how to fix it.
    fn findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        for (parent, module) in &self.0 {
            let edges = self.edges(parent);
            let rank = |name: &str| module.children.iter().position(|child| child == name);
            let show = |(user, used): (&str, &str)| {
                let places: Vec<_> = edges.get(&(user, used)).into_iter().flatten().copied().collect();
                format!("  `{user}` uses `{used}`: {}\n", places.join(", "))
            };
            match sort(&module.children, &edges) {
                Err(cycle) => findings.push(format!(
                    "modules of `{}` form a cycle; move the items that one of them uses down into a module that uses no \
                     other of them:\n{}",
                    [&["crate".to_owned()], parent.as_slice()].concat().join("::"),
                    cycle.iter().map(|edge| show(*edge)).collect::<String>()
                )),
                Ok(order) if parent.is_empty() => {
                    let wrong: String =
                        edges.keys().filter(|(user, used)| rank(used) > rank(user)).map(|edge| show(*edge)).collect();
                    if !wrong.is_empty() {
                        findings.push(format!(
                            "a module uses modules whose `mod` lines are below its own:\n{wrong}  move the `mod` lines into \
                             an order such as {}, or move the items down into an earlier module\n",
                            order.join(", ")
                        ));
                    }
                }
                Ok(_) => {}
            }
        }
        findings
    }
}

/// Returns the modules in an order in which each follows the modules that it uses. If there is no such order, returns
/// the edges of a cycle.
fn sort<'a>(modules: &'a [String], edges: &Edges<'a>) -> Result<Vec<&'a str>, Vec<(&'a str, &'a str)>> {
    let mut order: Vec<&str> = Vec::new();
    while order.len() < modules.len() {
        let needs = |user: &str| edges.keys().find(|(a, used)| *a == user && !order.contains(used)).copied();
        let mut left = modules.iter().map(String::as_str).filter(|module| !order.contains(module));
        if let Some(next) = left.clone().find(|module| needs(module).is_none()) {
            order.push(next);
            continue;
        }
        // Every remaining module uses another remaining one, so following the edges must lead back to a visited module.
        let mut walk: Vec<(&str, &str)> = Vec::new();
        let mut at = left.next().and_then(needs);
        while let Some(edge) = at {
            if let Some(start) = walk.iter().position(|(user, _)| *user == edge.0) {
                return Err(walk.split_off(start));
            }
            walk.push(edge);
            at = needs(edge.1);
        }
    }
    Ok(order)
}

fn is_test(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

/// Returns the tokens that follow an item, after its body or semicolon.
fn skip_item(item: &[TokenTree]) -> &[TokenTree] {
    let mut rest = item;
    let mut is_use = false;
    while let [first, after @ ..] = rest {
        rest = after;
        match first.to_string().as_str() {
            "use" => is_use = true,
            ";" => break,
            body if body.starts_with('{') && !is_use => break,
            _ => {}
        }
    }
    rest
}

/// Adds a path, or all paths of a `use` tree, to `found`. All of them begin with `prefix`. Returns the remaining
/// tokens.
fn read_paths<'a>(mut rest: &'a [TokenTree], prefix: &[String], found: &mut Vec<Found>) -> &'a [TokenTree] {
    let mut path = prefix.to_vec();
    while let [first, after @ ..] = rest {
        match first {
            TokenTree::Ident(name) => {
                let mut name = name.to_string();
                let line = first.span().start().line;
                if name != "self" || path.is_empty() {
                    path.push(name.clone());
                }
                match after {
                    [a, b, next @ ..] if a.to_string() == ":" && b.to_string() == ":" => rest = next,
                    [a, TokenTree::Ident(new), next @ ..] if a.to_string() == "as" => {
                        found.push(Found { line, path, name: new.to_string() });
                        return next;
                    }
                    _ => {
                        name = path.last().cloned().unwrap_or(name);
                        found.push(Found { line, path, name });
                        return after;
                    }
                }
            }
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for part in inner.split(|token| token.to_string() == ",") {
                    read_paths(part, &path, found);
                }
                return after;
            }
            _ => return rest,
        }
    }
    rest
}

/// Converts a path in module `at` to a path from the crate's root.
fn from_root(at: &[String], path: &[String]) -> Names {
    let mut full = at.to_vec();
    for name in path {
        match name.as_str() {
            "crate" => full.clear(),
            "super" => drop(full.pop()),
            "self" => {}
            _ => full.push(name.clone()),
        }
    }
    full
}

#[test]
fn modules_use_only_modules_above_them() -> Result<()> {
    let services = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate has no folder")?;
    let mut findings = String::new();
    for service in fs::read_dir(services)? {
        let service = service?;
        let mut roots: Vec<PathBuf> = ["src/lib.rs", "src/main.rs"].map(|root| service.path().join(root)).to_vec();
        if let Ok(programs) = fs::read_dir(service.path().join("src/bin")) {
            for program in programs {
                roots.push(program?.path());
            }
        }
        for root in roots {
            let root = if root.is_dir() { root.join("main.rs") } else { root };
            if root.is_file() {
                let modules = Crate::read(&root, &|file| fs::read_to_string(file).ok())?;
                findings.extend(modules.findings());
            }
        }
    }
    ensure!(findings.is_empty(), "{findings}");
    Ok(())
}

/// Returns the findings for a crate that consists of these files: names and contents.
fn findings(files: &[(&str, &str)]) -> Result<String> {
    let read = |file: &Path| files.iter().find(|(name, _)| Path::new(name) == file).map(|(_, text)| (*text).to_owned());
    Ok(Crate::read(Path::new("src/lib.rs"), &read)?.findings().concat())
}

#[test]
fn accepts_modules_in_order() -> Result<()> {
    let lib = ("src/lib.rs", "mod a;\nmod b;\npub use b::run;");
    assert_eq!(findings(&[lib, ("src/a.rs", "struct A;"), ("src/b/mod.rs", "use crate::{a::A};")])?, "");
    Ok(())
}

#[test]
fn finds_module_used_above_its_line() -> Result<()> {
    let lib = ("src/lib.rs", "mod a;\nmod b;\npub use b::run;");
    for text in ["use crate::b::C;", "\nfn f() { assert!(super::b::C) }", "use crate::{x, b as y};", "use super::run;"]
    {
        let found = findings(&[lib, ("src/a.rs", text), ("src/b.rs", "")])?;
        assert!(found.contains("`a` uses `b`: src/a.rs:") && found.contains("such as b, a,"), "{text}: {found}");
    }
    Ok(())
}

#[test]
fn finds_cycle_of_submodules() -> Result<()> {
    let lib = ("src/lib.rs", "mod m { mod a; mod b; use b::B; }");
    let found = findings(&[lib, ("src/m/a.rs", "use super::B;"), ("src/m/b.rs", "use crate::m::a::A;")])?;
    assert!(found.contains("`crate::m` form a cycle"), "{found}");
    assert!(found.contains("`a` uses `b`: src/m/a.rs:1") && found.contains("`b` uses `a`: src/m/b.rs:1"), "{found}");
    Ok(())
}

#[test]
fn ignores_paths_in_test_code() -> Result<()> {
    let test = "#[cfg(test)]\nmod tests { use crate::b::B; }\n#[cfg(test)]\nuse crate::b::{B, C};\nfn f() {}";
    assert_eq!(findings(&[("src/lib.rs", "mod a; mod b;"), ("src/a.rs", test), ("src/b.rs", "use crate::a;")])?, "");
    Ok(())
}
