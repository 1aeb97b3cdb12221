//! Names and comments in the code: the field's terms, and none of the private ones that an earlier version had.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::documentation::pages;

/// Words that are no part of an identifier, in whatever case and form. Each has a plain replacement.
const FORBIDDEN: &str = "\
    babble blame blamed blurt boast caution cautions clothes deadly deaf dice died dies doubt doubtful ears hear heard hears \
    homeless judge judged judgement judges judging lane lanes learn learned learns learnt mood news \
    occurrence occurrences patience patient recall recalled recalls remember remembered remembering remembers said say says \
    scene settle shelf shelves sight sighting sightings sought speak speaks spoke spoken stage standings surroundings talk \
    talker talks tell tells thief told trouble turn turns whole wish";

/// Identifiers of other crates.
const FOREIGN: [&str; 1] = ["set_parent_process_death_signal"];

/// Words that no doc comment begins with.
const FORBIDDEN_BEGINNINGS: [&str; 13] = [
    "How", "Likewise", "Nobody", "Somebody", "That", "Those", "What", "When", "Whether", "Where", "Which", "Who", "Why",
];

/// Phrases that make a riddle of a comment: name the object instead.
const FORBIDDEN_PHRASES: [&str; 6] =
    ["One that ", "One whose ", "Whoever ", "as good as none", "nobody's business", "not what they were"];

/// Words that make persons of programs and devices. The documentation has none of them.
const PERSONIFYING: &str = "blurt died doubt heard judge judged judges learned remembers sight talks told trouble";

/// Words that no test's name begins with.
const ARTICLES: [&str; 4] = ["a_", "an_", "the_", "what_"];

/// Directories with source code of the project.
const ROOTS: [&str; 7] = ["author", "benches", "examples", "fuzz", "handlers", "host", "tests"];

#[test]
fn identifiers_have_no_forbidden_parts() {
    parts_are_found_in_code_alone();
    let forbidden: BTreeSet<&str> = FORBIDDEN.split_whitespace().collect();
    let is_forbidden =
        |name: &str| !FOREIGN.contains(&name) && parts(name).iter().any(|part| forbidden.contains(part.as_str()));
    let mut found = BTreeSet::new();
    for file in sources() {
        let stem = Path::new(&file).file_stem().unwrap().to_str().unwrap().to_owned();
        let text = code(&std::fs::read_to_string(root().join(&file)).unwrap());
        let names = text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned);
        found.extend(names.chain([stem]).filter(|name| is_forbidden(name)).map(|name| format!("{file}: {name}")));
    }
    assert_eq!(found, BTreeSet::new(), "rename these to the field's terms");
}

#[test]
fn comments_and_pages_are_statements_without_forbidden_phrases() {
    let found = [phrases_of_comments(), phrases_of_pages()].concat();
    assert_eq!(found, [""; 0], "write these with the subject first, and as facts: what the item is or does");
}

/// Returns the places of comments that are to be written anew.
fn phrases_of_comments() -> Vec<String> {
    let mut found = Vec::new();
    for file in sources() {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        let (mut is_inside, mut is_fenced) = (false, false);
        for (number, line) in text.lines().enumerate() {
            let any = line.split_once("//").map_or("", |(_, comment)| comment);
            let phrases = FORBIDDEN_PHRASES.iter().filter(|phrase| any.contains(*phrase));
            found.extend(phrases.map(|phrase| format!("{file}:{}: {phrase}", number + 1)));
            let comment = doc_comment(line);
            let first = comment.and_then(|text| text.split_whitespace().next()).filter(|_| !is_inside);
            if first.is_some_and(|word| FORBIDDEN_BEGINNINGS.contains(&word)) {
                found.push(format!("{file}:{}", number + 1));
            }
            if let Some(language) = comment.and_then(|text| text.trim().strip_prefix("```")) {
                is_fenced = !is_fenced;
                // `make test` runs no doc tests.
                let is_test = is_fenced && !["ignore", "text", "sh", "yaml"].contains(&language);
                found.extend(is_test.then(|| format!("{file}:{}: a doc test", number + 1)));
            }
            is_inside = comment.is_some();
        }
    }
    found
}

/// Returns the places of pages that are to be written anew.
fn phrases_of_pages() -> Vec<String> {
    let mut found = Vec::new();
    for page in pages() {
        for (number, line) in page.text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
            let words = line.split(|c: char| !c.is_alphabetic()).filter(|word| is_personifying(word));
            let phrases = FORBIDDEN_PHRASES.into_iter().filter(|phrase| line.contains(*phrase));
            let at = |word| format!("{}:{}: {word}", page.path.display(), number + 1);
            found.extend(words.chain(phrases).map(at));
        }
    }
    found
}

fn is_personifying(word: &str) -> bool {
    PERSONIFYING.split(' ').any(|other| word.eq_ignore_ascii_case(other))
}

#[test]
fn test_names_are_short_and_begin_with_their_subject() {
    let mut found = Vec::new();
    for file in sources() {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        let mut is_test = false;
        for line in text.lines() {
            is_test |= line.contains("#[test]") || line.contains("#[tokio::test");
            let Some(name) = line.split_once("fn ").and_then(|(_, rest)| rest.split('(').next()) else { continue };
            if is_test && (name.len() > 60 || ARTICLES.iter().any(|article| name.starts_with(article))) {
                found.push(format!("{file}: {name}"));
            }
            is_test = false;
        }
    }
    assert_eq!(found, [""; 0], "name tests as subject_does_what[_when], in at most 60 characters");
}

/// Returns the text of a line of a doc comment.
fn doc_comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
}

/// Splits an identifier into its words, in lower case.
fn parts(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for word in name.split('_') {
        let mut was_lower = false;
        for c in word.chars() {
            match parts.last_mut() {
                Some(part) if !(part.is_empty() || was_lower && c.is_uppercase()) => part.extend(c.to_lowercase()),
                _ => parts.push(c.to_lowercase().collect()),
            }
            was_lower = !c.is_uppercase();
        }
        parts.push(String::new());
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Returns a source text without its comments and literals.
fn code(text: &str) -> String {
    let (mut code, mut rest) = (String::new(), text);
    while let Some(c) = rest.chars().next() {
        let is_after_word = code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if c == '"' {
            string_length(rest)
        } else if let Some(hashes) = raw_string(rest).filter(|_| !is_after_word) {
            let end = format!("\"{}", "#".repeat(hashes));
            rest[hashes + 2..].find(&end).map_or(rest.len(), |found| hashes + 2 + found + end.len())
        } else if let Some(length) = character_length(rest) {
            length
        } else {
            code.push(c);
            c.len_utf8()
        };
        if !code.ends_with(c) {
            code.push(' ');
        }
        rest = &rest[length..];
    }
    code
}

/// Returns the length of a literal that begins with a quotation mark.
fn string_length(rest: &str) -> usize {
    let mut is_escaped = true; // the first mark does not end it
    for (at, c) in rest.char_indices() {
        match c {
            '"' if !is_escaped => return at + 1,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    rest.len()
}

/// Returns the number of `#` before the mark, if a raw string begins here.
fn raw_string(rest: &str) -> Option<usize> {
    let rest = rest.strip_prefix('r')?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].starts_with('"').then_some(hashes)
}

/// Returns the length of a literal of one character, which a lifetime is not.
fn character_length(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('\'')?;
    let first = inner.chars().next()?;
    if first == '\\' {
        return inner[2..].find('\'').map(|end| 1 + 2 + end + 1);
    }
    inner[first.len_utf8()..].starts_with('\'').then_some(2 + first.len_utf8())
}

/// Returns the source files, as paths below the root of the project.
fn sources() -> Vec<String> {
    let mut files = Vec::new();
    ROOTS.iter().map(|name| root().join(name)).filter(|path| path.exists()).for_each(|path| collect(&path, &mut files));
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

/// The check itself finds a name wherever it stands, and nothing in comments and literals.
fn parts_are_found_in_code_alone() {
    let text = "let whole = r#\"told\"#; // heard\nfn ask<'a>(c: char) { c == '\"' || c == '\\'' || c == 'x'; \"said \\\" sought\"; isTold() }";
    let code = code(text);
    let words: Vec<&str> =
        code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
    assert_eq!(words, ["let", "whole", "fn", "ask", "a", "c", "char", "c", "c", "c", "isTold"]);
    assert_eq!(parts("LongestMoment_isTOLD2"), ["longest", "moment", "is", "told2"]);
}
