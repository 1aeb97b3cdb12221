//! Checks of a component against the contract before it is compiled, so that the error names the remedy.

use akri_model::text::clean;
use wasmparser::{Parser, Payload};

use crate::component::LoadError;

/// The export that makes a component a handler.
pub(crate) const HANDLER: &str = "akri:discovery/handler@";
/// The prefix of everything in the contract.
const PACKAGE: &str = "akri:discovery/";
/// The version of the contract that this host has.
const VERSION: &str = "0.1.0";
/// Bytes of a file that is no WebAssembly that are looked at.
const BEGINNING: usize = 80;

/// Checks by its header that a file is a component.
pub(crate) fn check_header(bytes: &[u8]) -> Result<(), LoadError> {
    match bytes.get(..8) {
        Some([b'\0', b'a', b's', b'm', .., 0, 0]) => Err(not_a_component(CORE_MODULE)),
        Some([b'\0', b'a', b's', b'm', ..]) => Ok(()),
        _ => Err(LoadError::Refused(format!("no WebAssembly file: {}", beginning(bytes)))),
    }
}

/// Checks what a component imports and exports by name. Types are checked when it is linked.
pub(crate) fn check_names(bytes: &[u8]) -> Result<(), LoadError> {
    objection(&Names::read(bytes)).map_or(Ok(()), |why| Err(not_a_handler(&why)))
}

/// Returns the error of bytes that are no component, or do not compile.
pub(crate) fn not_a_component(why: &str) -> LoadError {
    LoadError::Refused(format!("not a WebAssembly component: {why}"))
}

fn not_a_handler(why: &str) -> LoadError {
    LoadError::Refused(format!("not a discovery handler for this host: {why}"))
}

const CORE_MODULE: &str = "it is a core module. Rust: build it with --target wasm32-wasip2; C and Go: make a component of \
                           it with `akri handler componentize`";

/// Describes a file that is no WebAssembly by its beginning.
fn beginning(bytes: &[u8]) -> String {
    let start = String::from_utf8_lossy(bytes.get(..BEGINNING).unwrap_or(bytes)).into_owned();
    let line = start.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let is_text = !line.is_empty() && !line.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER);
    match bytes.is_empty() {
        true => "it is empty".to_owned(),
        false if is_text => format!("it is a text that begins with '{}'", clean(line.trim(), BEGINNING)),
        false => "it does not begin with the magic number of WebAssembly".to_owned(),
    }
}

/// The names of a component's own imports and exports.
#[derive(Debug, Default)]
struct Names {
    imports: Vec<String>,
    exports: Vec<String>,
}

impl Names {
    /// Reads the names as far as the component makes sense; errors are for the compiler to report.
    fn read(bytes: &[u8]) -> Self {
        let (mut names, mut depth) = (Self::default(), 0_usize);
        for payload in Parser::new(0).parse_all(bytes).map_while(Result::ok) {
            match payload {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(imports) if depth == 0 => {
                    names.imports.extend(imports.into_iter().map_while(Result::ok).map(|i| i.name.name.to_owned()));
                }
                Payload::ComponentExportSection(exports) if depth == 0 => {
                    names.exports.extend(exports.into_iter().map_while(Result::ok).map(|e| e.name.name.to_owned()));
                }
                _ => {}
            }
        }
        names
    }
}

/// Returns why a component with these names can't be a handler of this host.
fn objection(names: &Names) -> Option<String> {
    let all = || names.exports.iter().chain(&names.imports);
    if let Some(version) = all()
        .filter_map(|name| contract_version(name))
        .find(|version| *version != "0.1" && !version.starts_with("0.1."))
    {
        return Some(format!(
            "it was made for akri:discovery {version}; this host speaks 0.1, which `akri handler wit` writes"
        ));
    }
    if !names.exports.iter().any(|name| name.starts_with(HANDLER)) {
        return Some(no_handler(&names.exports));
    }
    let newer = names.imports.iter().find(|name| name.starts_with("wasi:") && name.contains("@0.3"))?;
    Some(format!("it imports {newer}, and this host has WASI 0.2: build it with tools for 0.2"))
}

fn no_handler(exports: &[String]) -> String {
    if let Some(run) = exports.iter().find(|name| name.starts_with("wasi:cli/run@")) {
        return format!(
            "it exports no handler, it is a program (it exports {run}): build a library for the world discovery-handler; \
             Rust: crate-type = [\"cdylib\"]"
        );
    }
    let what = if exports.is_empty() { "nothing".to_owned() } else { clean(&exports.join(", "), 256) };
    format!(
        "it exports {what}, and not {HANDLER}{VERSION}: build it for the world discovery-handler, which `akri handler wit` \
         writes"
    )
}

/// Returns the version of the contract in the name of an import or export, if it is of the contract.
fn contract_version(name: &str) -> Option<&str> {
    name.strip_prefix(PACKAGE)?.split_once('@').map(|(_, version)| version)
}

/// Explains an error of linking: the names were right, and the types were not, or an import is unknown.
pub(crate) fn link_error(error: &str) -> LoadError {
    let is_ours = error.contains(PACKAGE) || error.starts_with("expected ");
    let remedy = if error.contains("matching implementation was not found") && !error.contains("mismatch") {
        "; it was made for a newer host, or for another one"
    } else if is_ours {
        "; its wit/ was changed: `akri handler wit` writes the one of this host"
    } else {
        ""
    };
    not_a_handler(&format!("{error}{remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(imports: &[&str], exports: &[&str]) -> Names {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Names { imports: owned(imports), exports: owned(exports) }
    }

    #[test]
    fn other_files_are_named_in_words() {
        let why = |bytes: &[u8]| check_header(bytes).unwrap_err().to_string();
        let yaml = "no WebAssembly file: it is a text that begins with 'apiVersion: akri.sh/v0'";
        assert_eq!(why(b"\napiVersion: akri.sh/v0\nkind: Configuration\n"), yaml);
        assert_eq!(why(b""), "no WebAssembly file: it is empty");
        let other = "no WebAssembly file: it does not begin with the magic number of WebAssembly";
        assert_eq!(why(b"\x7fELF\x02\x01"), other);
        assert_eq!(why(b"\0as"), other);
        assert!(why(&[b'x'; 4000]).len() < 200);
        assert!(why(b"\0asm\x01\0\0\0").contains("it is a core module. Rust: build it with --target wasm32-wasip2"));
    }

    #[test]
    fn components_for_other_hosts_are_refused_with_the_remedy() {
        let ours = "akri:discovery/handler@0.1.0";
        for (imports, exports, expected) in [
            (
                &["akri:discovery/types@0.2.0"][..],
                &["akri:discovery/handler@0.2.0"][..],
                "made for akri:discovery 0.2.0; this host speaks 0.1",
            ),
            (&["akri:discovery/log@0.10.0"], &[ours], "made for akri:discovery 0.10.0"),
            (
                &[],
                &["wasi:cli/run@0.2.3"],
                "exports no handler, it is a program (it exports wasi:cli/run@0.2.3): build a library",
            ),
            (&[], &[], "exports nothing, and not akri:discovery/handler@0.1.0"),
            (&[], &["a:b/c", "run"], "exports a:b/c, run, and not akri:discovery/handler@0.1.0"),
            (&["wasi:cli/stdout@0.3.0"], &[ours], "imports wasi:cli/stdout@0.3.0, and this host has WASI 0.2"),
        ] {
            let why = objection(&names(imports, exports)).unwrap();
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn versions_of_the_minor_are_accepted() {
        for version in ["0.1.0", "0.1.7"] {
            let (import, export) =
                (format!("akri:discovery/new@{version}"), format!("akri:discovery/handler@{version}"));
            assert_eq!(objection(&names(&[&import, "wasi:io/poll@0.2.6", "a:b/c"], &[&export, "init"])), None);
        }
    }
}
