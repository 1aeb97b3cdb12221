//! Names and comments in the code: the field's terms, and none of the private ones that an earlier version had.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Names that no type, alias, module, function or constant may have. Each has a plain replacement.
const FORBIDDEN: [&str; 36] = [
    "Asked",
    "Board",
    "Ears",
    "Heard",
    "Listened",
    "Looker",
    "Nameless",
    "Named",
    "News",
    "Occurrence",
    "Over",
    "Revealed",
    "Said",
    "Sight",
    "Sighting",
    "Sightings",
    "Sought",
    "Standings",
    "Surroundings",
    "Told",
    "Trouble",
    "Turn",
    "Twice",
    "Unlisted",
    "Whole",
    "Wish",
    "agreed",
    "dice",
    "doubt",
    "doubtful",
    "hear_of_others",
    "look",
    "settle",
    "tell",
    "told",
    "waits",
];

/// Files whose names say too little.
const FORBIDDEN_FILES: [&str; 7] =
    ["agreement.rs", "ears.rs", "gone.rs", "heard.rs", "remembered.rs", "standing.rs", "whole.rs"];

/// Words that no doc comment begins with.
const FORBIDDEN_BEGINNINGS: [&str; 13] = [
    "How", "Likewise", "Nobody", "Somebody", "That", "Those", "What", "When", "Whether", "Where", "Which", "Who", "Why",
];

/// Directories with source code of the project.
const ROOTS: [&str; 7] = ["author", "benches", "examples", "fuzz", "handlers", "host", "tests"];

#[test]
fn items_have_no_forbidden_names() {
    let forbidden: BTreeSet<&str> = FORBIDDEN.into();
    let mut found = Vec::new();
    for file in sources() {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        let names = text.lines().filter_map(defined).filter(|name| forbidden.contains(name));
        found.extend(names.map(|name| format!("{file}: {name}")));
    }
    assert_eq!(found, [""; 0], "rename these to the field's terms");
}

#[test]
fn files_have_no_forbidden_names() {
    let is_forbidden = |file: &String| FORBIDDEN_FILES.iter().any(|name| file.rsplit('/').next() == Some(name));
    assert_eq!(sources().into_iter().filter(is_forbidden).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn doc_comments_begin_with_a_statement() {
    let mut found = Vec::new();
    for file in sources() {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        let mut is_inside = false;
        for (number, line) in text.lines().enumerate() {
            let comment = doc_comment(line);
            let first = comment.and_then(|text| text.split_whitespace().next()).filter(|_| !is_inside);
            if first.is_some_and(|word| FORBIDDEN_BEGINNINGS.contains(&word)) {
                found.push(format!("{file}:{}", number + 1));
            }
            is_inside = comment.is_some();
        }
    }
    assert_eq!(found, [""; 0], "say first what the item is or does");
}

#[test]
fn test_names_have_at_most_60_characters() {
    let mut found = Vec::new();
    for file in sources() {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        let mut is_test = false;
        for line in text.lines() {
            is_test |= line.contains("#[test]") || line.contains("#[tokio::test");
            let Some(name) = defined(line) else { continue };
            if is_test && name.len() > 60 {
                found.push(format!("{file}: {name}"));
            }
            is_test = false;
        }
    }
    assert_eq!(found, [""; 0], "name tests as subject_does_what[_when]");
}

/// Returns the text of a line of a doc comment.
fn doc_comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
}

/// Returns the name that a line defines, if it defines a type, an alias, a module, a function or a constant.
fn defined(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub") || *word == "async");
    let keyword = words.next()?;
    let is_definition =
        matches!(keyword, "struct" | "enum" | "trait" | "type" | "union" | "mod" | "fn" | "const" | "static");
    let name = words.find(|word| !matches!(*word, "fn" | "async" | "mut")).filter(|_| is_definition)?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Returns the source files, as paths below the root of the project.
fn sources() -> Vec<String> {
    let mut files = Vec::new();
    ROOTS.iter().for_each(|directory| collect(&root().join(directory), &mut files));
    let relative = |file: PathBuf| file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    files.into_iter().map(relative).collect()
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && !entry.ends_with("target") {
            collect(&entry, files);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            files.push(entry);
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}
