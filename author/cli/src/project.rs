//! The files of a handler's project, as far as a build depends on them.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use akri_node::watch_dir::WatchDir;
use walkdir::{DirEntry, WalkDir};

/// Directories that builds and package managers write; hidden ones are left out, too.
const WRITTEN: [&str; 8] = ["target", "build", "dist", "vendor", "venv", "node_modules", "bindings", "__pycache__"];
/// Directories that are watched. Changes in further ones are seen with the next round.
const DIRECTORIES: usize = 64;
/// Files and directories that are compared, and bytes of each file.
pub(super) const FILES: usize = 4096;
const BYTES: u64 = 4 << 20;

/// The files with hashes of their contents: a build that writes a file as it was does not cause another build.
pub(super) type Files = BTreeMap<PathBuf, u64>;

/// A project at one moment.
pub(super) struct Project {
    pub(super) files: Files,
    /// Watches that were there before the files were read.
    pub(super) watched: Vec<WatchDir>,
    /// Set if there are more than [`FILES`]: the others are not compared.
    pub(super) is_cut: bool,
}

/// Returns the files below a directory and some others.
pub(super) fn watch(directory: &Path, others: &[&Path]) -> Project {
    let entries = WalkDir::new(directory).into_iter().filter_entry(|entry| entry.depth() == 0 || !is_left_out(entry));
    let mut entries = entries.flatten().map(DirEntry::into_path);
    // A link may lead to one of its own parents.
    let (directories, inside): (Vec<_>, Vec<_>) =
        entries.by_ref().take(FILES).partition(|path| path.is_dir() && !path.is_symlink());
    let parent = |file: &&Path| file.parent().map(|parent| Path::new(".").join(parent));
    let watched: BTreeSet<PathBuf> = directories.into_iter().chain(others.iter().filter_map(parent)).collect();
    let watched = watched.iter().take(DIRECTORIES).map(|directory| WatchDir::new(directory)).collect();
    let files = inside.into_iter().filter(|path| path.is_file()).chain(others.iter().map(|path| path.to_path_buf()));
    let files = files.filter_map(|path| Some((hash(&path).ok()?, path))).map(|(hash, path)| (path, hash)).collect();
    Project { files, watched, is_cut: entries.next().is_some() }
}

/// Returns whether builds write this.
fn is_left_out(entry: &DirEntry) -> bool {
    let name = entry.file_name().to_string_lossy();
    name.starts_with('.') || name.ends_with(".wasm") || WRITTEN.contains(&&*name)
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
        for directory in ["src/deep", "target/debug", ".venv", "venv"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for file in ["a.c", "src/deep/b.rs", "target/debug/c", ".venv/d", "venv/g", ".e.swp", "f.wasm"] {
            fs::write(root.join(file), "1").unwrap();
        }
        let files = || watch(&root, &[]).files;
        let first = files();
        let names: Vec<&Path> = first.keys().map(|path| path.strip_prefix(&root).unwrap()).collect();
        assert_eq!(names, [Path::new("a.c"), Path::new("src/deep/b.rs")]);
        fs::write(root.join("a.c"), "1").unwrap();
        assert_eq!(files(), first, "the same text is no change");
        fs::write(root.join("a.c"), "2").unwrap();
        assert_ne!(files(), first);
        assert!(!watch(&root, &[]).is_cut);
        (0..FILES).for_each(|file| fs::write(root.join(format!("{file}.c")), "").unwrap());
        assert!(watch(&root, &[]).is_cut);
        fs::remove_dir_all(&root).unwrap();
    }
}
