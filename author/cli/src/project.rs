//! The files of a handler's project, as far as a build depends on them.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use akri_node::watch_dir::WatchDir;

/// Directories that builds write; hidden ones are left out, too.
const WRITTEN: [&str; 5] = ["target", "build", "node_modules", "bindings", "__pycache__"];
/// Directories that are watched. Changes in further ones are seen with the next round.
const DIRECTORIES: usize = 64;
/// Files that are compared, and bytes of each.
const FILES: usize = 4096;
const BYTES: u64 = 4 << 20;

/// The files with hashes of their contents: a build that writes a file as it was does not cause another build.
pub(super) type Files = BTreeMap<PathBuf, u64>;

/// The files below a directory and some others, and watches that were there before they were read.
pub(super) fn watch(directory: &Path, others: &[&Path]) -> (Files, Vec<WatchDir>) {
    let directories = directories(directory);
    let beside = others.iter().filter_map(|file| file.parent()).map(|parent| match parent.as_os_str().is_empty() {
        true => PathBuf::from("."),
        false => parent.to_owned(),
    });
    let mut watched: Vec<PathBuf> = directories.iter().cloned().chain(beside).collect();
    watched.sort();
    watched.dedup();
    let watched = watched.iter().take(DIRECTORIES).map(|directory| WatchDir::new(directory)).collect();
    let inside = directories.iter().flat_map(|directory| entries(directory)).filter(|path| path.is_file());
    let inside = inside.filter(|path| path.extension().is_none_or(|extension| extension != "wasm"));
    let files = inside.chain(others.iter().map(|path| path.to_path_buf())).take(FILES);
    (files.filter_map(|path| Some((hash(&path).ok()?, path))).map(|(hash, path)| (path, hash)).collect(), watched)
}

/// Returns the directory and those below it, without those that builds write.
fn directories(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        // A link may lead to one of its own parents.
        left.extend(entries(&next).filter(|path| path.is_dir() && !path.is_symlink()));
        found.push(next);
        if found.len() == FILES {
            break;
        }
    }
    found
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        !name.starts_with('.') && !WRITTEN.contains(&&*name)
    })
}

fn hash(path: &Path) -> io::Result<u64> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(BYTES).read_to_end(&mut bytes)?;
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_count_and_results_of_builds_do_not() {
        let root = std::env::temp_dir().join(format!("akri-project-{}", std::process::id()));
        for directory in ["src/deep", "target/debug", ".venv"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for file in ["a.c", "src/deep/b.rs", "target/debug/c", ".venv/d", ".e.swp", "f.wasm"] {
            fs::write(root.join(file), "1").unwrap();
        }
        let files = || watch(&root, &[]).0;
        let first = files();
        let names: Vec<&Path> = first.keys().map(|path| path.strip_prefix(&root).unwrap()).collect();
        assert_eq!(names, [Path::new("a.c"), Path::new("src/deep/b.rs")]);
        fs::write(root.join("a.c"), "1").unwrap();
        assert_eq!(files(), first, "the same text is no change");
        fs::write(root.join("a.c"), "2").unwrap();
        assert_ne!(files(), first);
        fs::remove_dir_all(&root).unwrap();
    }
}
