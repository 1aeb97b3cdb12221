//! `akri handler new`: a template of a handler.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context as _, ensure};

use super::args::NewArgs;
use crate::output::print_text;

/// The files of the new directory. `@NAME@` becomes the name of the handler, `@FILE@` that of the component, `@AKRI@`
/// this program.
const FILES: [(&str, &str); 5] = [
    ("Cargo.toml", include_str!("template/Cargo.toml.txt")),
    ("Makefile", include_str!("template/Makefile.txt")),
    (".gitignore", include_str!("template/gitignore.txt")),
    ("configuration.yaml", include_str!("template/configuration.yaml.txt")),
    ("src/lib.rs", include_str!("template/lib.rs.txt")),
];

/// The WIT files of this version.
const WIT: [(&str, &str); 9] = [
    ("wit/cache.wit", include_str!("../../../../wit/cache.wit")),
    ("wit/handler.wit", include_str!("../../../../wit/handler.wit")),
    ("wit/logging.wit", include_str!("../../../../wit/logging.wit")),
    ("wit/multicast.wit", include_str!("../../../../wit/multicast.wit")),
    ("wit/properties.wit", include_str!("../../../../wit/properties.wit")),
    ("wit/round.wit", include_str!("../../../../wit/round.wit")),
    ("wit/types.wit", include_str!("../../../../wit/types.wit")),
    ("wit/udev.wit", include_str!("../../../../wit/udev.wit")),
    ("wit/world.wit", include_str!("../../../../wit/world.wit")),
];

/// Writes the files. An existing directory is an error.
pub(super) fn run(args: &NewArgs) -> anyhow::Result<ExitCode> {
    let directory = args.directory.as_path();
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    ensure!(is_name(name), "'{name}' can't be a handler's name: lower-case letters, digits and '-', a letter first");
    ensure!(!directory.exists(), "'{}' exists already", directory.display());
    let (file, akri) = (format!("{}.wasm", name.replace('-', "_")), program());
    for (path, text) in FILES {
        let text = text.replace("@NAME@", name).replace("@FILE@", &file).replace("@AKRI@", &akri);
        write(&directory.join(path), &text)?;
    }
    for (path, text) in WIT {
        write(&directory.join(path), text)?;
    }
    print_text(&format!("created {0}; to try it: cd {0} && make run\n", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of this program for a Makefile, quoted if needed; it need not be in the PATH.
fn program() -> String {
    let path = env::current_exe().ok().and_then(|path| path.into_os_string().into_string().ok());
    path.filter(|path| !path.contains(['$', '#', '"', '`', '\\', '\n'])).unwrap_or_else(|| "akri".to_owned())
}

/// Returns whether the name is valid for Kubernetes and for a package.
fn is_name(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    name.len() <= 56
        && name.bytes().all(known)
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, text));
    written.with_context(|| format!("cannot write '{}'", path.display()))
}
