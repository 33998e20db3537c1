//! How to call this program in commands: by name if the shell finds it, else by its path.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The name of the installed program.
const NAME: &str = "pillion";

/// Returns how to call this program in a command.
pub(crate) fn own() -> PathBuf {
    let Ok(program) = std::env::current_exe() else { return PathBuf::from(NAME) };
    called(program, std::env::var_os("PATH").as_deref())
}

/// Returns the name if the first program of that name on the search path is this one, else the path.
fn called(program: PathBuf, search: Option<&OsStr>) -> PathBuf {
    let found = search.and_then(|search| {
        let candidates = std::env::split_paths(search).map(|folder| folder.join(NAME));
        candidates.into_iter().find(|candidate| candidate.is_file())
    });
    let same = |found: &Path| match (found.canonicalize(), program.canonicalize()) {
        (Ok(found), Ok(program)) => found == program,
        _ => false,
    };
    if found.as_deref().is_some_and(same) { PathBuf::from(NAME) } else { program }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_enough_only_if_it_finds_this_program() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, others) = (folder.path().join("ours"), folder.path().join("others"));
        for folder in [&ours, &others] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join(NAME), "").unwrap();
        }
        let program = ours.join(NAME);
        let of = |folders: &[&Path]| called(program.clone(), Some(&std::env::join_paths(folders).unwrap()));
        assert_eq!(of(&[folder.path(), &ours, &others]), Path::new(NAME));
        assert_eq!(of(&[&others, &ours]), program, "another one is found first");
        assert_eq!(of(&[folder.path()]), program);
        assert_eq!(called(program.clone(), None), program);
    }
}
