//! The files of a new handler, by language, and the WIT package.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::ValueEnum;
use include_dir::{Dir, File, include_dir};

use crate::bindings::{self, World};

/// A directory for each language, and `common` for files that a language need not have itself. Names end in `.txt`, so that no
/// tool takes the files for its own.
static TEMPLATES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/templates");
/// The crate that handlers in Rust are written with.
static SDK: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../handlers/sdk");
/// The WIT files of this version, with the packages they depend on.
static WIT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../wit");

/// The lines of a DiscoveryHandler whose component holds an interpreter.
const LIMITS: &str = "  limits:
    # The component holds an interpreter, which takes more to compile than the default allows.
    compile: {memory: 1Gi, time: 3m}
";

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
    /// With `ziglang`, from PyPI.
    C,
    /// With Go 1.25.
    Go,
}

/// Files by their paths.
pub(crate) type Files = BTreeMap<PathBuf, Vec<u8>>;

impl Language {
    /// Returns the files of a new handler of a name, whose component is `file`, and which is built with the program `akri`.
    ///
    /// # Errors
    /// If the language has no way into that world.
    pub(crate) fn files(self, world: World, name: &str, file: &str, akri: &str) -> anyhow::Result<Files> {
        self.check(world)?;
        let language = format!("{self:?}").to_lowercase();
        let go_package = wit_bindgen_go::remote_pkg_version();
        let placeholders = [
            ("@NAME@", name),
            ("@FILE@", file),
            ("@AKRI@", akri),
            ("@WORLD@", world.name()),
            ("@SDK@", if world == World::Net { ", features = [\"net\"]" } else { "" }),
            (
                "@HTTP@",
                if world == World::Http { "wstd = { version = \"0.6.8\", default-features = false }\n" } else { "" },
            ),
            ("@PKG@", &go_package),
            ("@GRANTS@", grants(world)),
            ("@LIMITS@", if matches!(self, Self::Python | Self::JavaScript) { LIMITS } else { "" }),
        ];
        let fill = |text: &str| placeholders.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        let templates = ["common", &language].map(|name| template(name, fill));
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
            Self::Go => files.extend(bindings::for_go(world, name)?),
            Self::C => files.extend(bindings::for_c(world)?),
            Self::Python | Self::JavaScript => {}
        }
        Ok(files)
    }

    /// Refuses worlds that a language's runtime has no way into.
    fn check(self, world: World) -> anyhow::Result<()> {
        let missing = match (self, world) {
            (Self::Python, World::Http) => "its Python has no HTTP; sockets work: --world net-handler",
            (Self::JavaScript, World::Net) => "its runtime has no sockets; 'fetch' works: --world http-handler",
            _ => return Ok(()),
        };
        bail!("--lang {self:?} --world {}: {missing}", world.name());
    }
}

/// Returns the lines of a DiscoveryHandler that open a world, to be filled in.
fn grants(world: World) -> &'static str {
    match world {
        World::Discovery => "",
        World::Net => {
            "    tcp: []                      # such as {networks: [192.0.2.0/24], ports: [502]}
    udp: []
    names: []                    # such as \"*.plant.example\"; the addresses have to be granted as well
"
        }
        World::Http => {
            "    http: []                     # such as {networks: [192.0.2.0/24], ports: [443]}
    names: []                    # such as \"*.plant.example\"; the addresses have to be granted as well
"
        }
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
            (Language::Go, vec!["gen/akri_discovery_udev/empty.s"]),
        ] {
            let files = language.files(World::Discovery, "my-handler", "my_handler.wasm", "akri").unwrap();
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

    #[test]
    fn worlds_bring_bindings_and_grants_or_are_refused() {
        for language in [Language::C, Language::Go] {
            let count = |world: World| {
                let files = language.files(world, "mine", "mine.wasm", "akri").unwrap();
                let bindings = files.iter().filter(|(path, _)| path.starts_with("gen"));
                let text: String = bindings.map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned()).collect();
                let object = String::from_utf8_lossy(&files[Path::new("handler.yaml")]).into_owned();
                let makefile = String::from_utf8_lossy(&files[Path::new("Makefile")]).into_owned();
                assert!(makefile.contains(world.name()) && !makefile.contains("@WORLD@"), "{makefile}");
                (text.contains("start-connect"), text.contains("outgoing-handler"), object.contains("    tcp: []"))
            };
            assert_eq!(count(World::Discovery), (false, false, false));
            assert_eq!(count(World::Net), (true, false, true));
            assert_eq!(count(World::Http), (false, true, false));
        }
        for (language, world) in [(Language::Python, World::Http), (Language::JavaScript, World::Net)] {
            let refused = language.files(world, "mine", "mine.wasm", "akri").unwrap_err().to_string();
            assert!(refused.contains("work: --world") || refused.contains("works: --world"), "{refused}");
        }
    }
}
