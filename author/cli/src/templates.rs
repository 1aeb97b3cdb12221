//! The files of a new handler, by language, and the WIT package.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use include_dir::{Dir, File, include_dir};
use wasi_preview1_component_adapter_provider::WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER;

/// A directory for each language, and `common` for files that a language need not have itself. Names end in `.txt`, so that no
/// tool takes the files for its own.
static TEMPLATES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/templates");
/// The crate that handlers in Rust are written with.
static SDK: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../handlers/sdk");
/// The WIT files of this version, with the packages they depend on.
static WIT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../wit");

/// The adapter that makes a component for WASI 0.2 of a module for WASI 0.1, under the name by which Go's build takes it.
const ADAPTER: &str = "wasi_snapshot_preview1.wasm";

/// A language with a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lowercase")]
pub(crate) enum Language {
    /// With `cargo` and the target `wasm32-wasip2`.
    Rust,
    /// With `componentize-py`, from PyPI.
    Python,
    /// With `componentize-js`, from npm.
    JavaScript,
    /// With `ziglang` and `wasm-tools`, from PyPI.
    C,
    /// With Go 1.25, and `wasm-tools` from PyPI.
    Go,
}

/// Files by their paths.
pub(crate) type Files = BTreeMap<PathBuf, Vec<u8>>;

impl Language {
    /// Returns the files of a new handler; `fill` replaces placeholders in templates.
    pub(crate) fn files(self, fill: impl Fn(&str) -> String) -> Files {
        let language = format!("{self:?}").to_lowercase();
        let templates = ["common", &language].map(|name| template(name, &fill));
        let mut files: Files = templates.into_iter().flatten().collect();
        if self != Self::Rust {
            files.extend(wit().into_iter().map(|(path, bytes)| (Path::new("wit").join(path), bytes)));
        }
        match self {
            // It holds the contract.
            Self::Rust => {
                let sdk = contents(&SDK).into_iter();
                files.extend(sdk.map(|(path, bytes)| (Path::new("sdk/akri-handler").join(path), bytes)));
            }
            Self::Go => {
                files.insert(ADAPTER.into(), WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER.to_vec());
            }
            Self::Python | Self::JavaScript | Self::C => {}
        }
        files
    }
}

/// Returns the files of the WIT package.
pub(crate) fn wit() -> Files {
    contents(&WIT)
}

fn template(name: &str, fill: impl Fn(&str) -> String) -> Files {
    let files = TEMPLATES.get_dir(name).into_iter().flat_map(files_below);
    let filled = files.filter_map(|file| {
        let path = file.path().strip_prefix(name).ok()?.with_extension("");
        Some((path, fill(file.contents_utf8()?).into_bytes()))
    });
    filled.collect()
}

fn contents(directory: &'static Dir<'static>) -> Files {
    files_below(directory).map(|file| (file.path().to_owned(), file.contents().to_vec())).collect()
}

fn files_below(directory: &'static Dir<'static>) -> Box<dyn Iterator<Item = &'static File<'static>>> {
    Box::new(directory.files().chain(directory.dirs().flat_map(files_below)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_language_replace_common_ones() {
        for (language, paths) in [
            (Language::Rust, vec!["Cargo.toml", "sdk/akri-handler/src/lib.rs", "src/lib.rs"]),
            (Language::Python, vec!["requirements.txt", ".gitignore"]),
            (Language::C, vec!["gen/discovery_handler.h"]),
            (Language::Go, vec![ADAPTER, "gen/akri_discovery_udev/empty.s"]),
        ] {
            let files = language.files(|text| text.replace("@NAME@", "my-handler"));
            let wit = if language == Language::Rust { "sdk/akri-handler/wit/deps/io.wit" } else { "wit/deps/io.wit" };
            let common = ["handler.yaml", "configuration.yaml", "cassettes/example.yaml", wit, "Makefile"];
            for path in paths.into_iter().chain(common) {
                assert!(files.contains_key(Path::new(path)), "{language:?}: {path}");
            }
            let object = String::from_utf8(files[Path::new("handler.yaml")].clone()).unwrap();
            assert_eq!(object.contains("limits:"), language == Language::Python, "{object}");
            assert!(object.contains("my-handler"), "{object}");
        }
    }
}
