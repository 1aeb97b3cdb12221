//! `akri handler new` and `akri handler wit`: what an author starts with.

use std::env;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use akri_cli::output::{plain, print_text};
use anyhow::{Context as _, bail, ensure};

use crate::args::{NewArgs, WitArgs};
use crate::templates::{Files, wit as wit_files};

/// The handlers that come with Akri, as this command would name them.
const BUILT_IN: [&str; 5] = ["debug-echo", "mdns", "onvif", "opcua", "udev"];

/// Writes the files of a new handler. None of them may exist.
pub(super) fn run(args: &NewArgs) -> anyhow::Result<ExitCode> {
    let name = args.name.as_str();
    check_name(name)?;
    let directory = args.directory.clone().unwrap_or_else(|| PathBuf::from(name));
    let (component, akri) = (format!("{}.wasm", name.replace('-', "_")), program());
    let fill = |text: &str| text.replace("@NAME@", name).replace("@FILE@", &component).replace("@AKRI@", &akri);
    write_all(&directory, &args.lang.files(fill))?;
    print_text(&format!("created {0}; to try it: cd {0} && make run\n", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the WIT package. A directory that has another version of it gets this one.
pub(super) fn wit(args: &WitArgs) -> anyhow::Result<ExitCode> {
    for (path, text) in wit_files() {
        let removed = match fs::remove_file(args.directory.join(&path)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let written = removed.and_then(|()| write_new(&args.directory, &path, &text));
        written.with_context(|| format!("cannot write '{}'", args.directory.join(&path).display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes files below a directory, or none if one of them exists.
fn write_all(directory: &Path, files: &Files) -> anyhow::Result<()> {
    let mut paths = files.keys().map(|path| directory.join(path));
    if let Some(existing) = paths.find(|path| path.symlink_metadata().is_ok()) {
        bail!("'{}' exists already", existing.display());
    }
    for (path, bytes) in files {
        let written = write_new(directory, path, bytes);
        written.with_context(|| format!("cannot write '{}'", directory.join(path).display()))?;
    }
    Ok(())
}

/// Writes a new file below a directory. Neither that nor what is below it may be a link: where others can write, such as in
/// /tmp, they would choose the place.
fn write_new(directory: &Path, file: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = directory.join(file);
    directory.parent().map_or(Ok(()), fs::create_dir_all)?;
    let directories: Vec<&Path> = path.ancestors().skip(1).take(file.components().count()).collect();
    for directory in directories.into_iter().rev() {
        match fs::create_dir(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            Err(_) if !directory.symlink_metadata()?.is_dir() => {
                return Err(io::Error::other(format!("'{}' is a link or a file", directory.display())));
            }
            _ => {}
        }
    }
    File::create_new(path)?.write_all(bytes)
}

/// Returns the path of this program for a Makefile, quoted if needed; it need not be in the PATH.
fn program() -> String {
    let path = env::current_exe().ok().and_then(|path| path.into_os_string().into_string().ok());
    path.filter(|path| !path.contains(['$', '#', '"', '`', '\\', '\n'])).unwrap_or_else(|| "akri".to_owned())
}

/// Refuses a name that is not valid for Kubernetes and for a package, and one that is taken.
fn check_name(name: &str) -> anyhow::Result<()> {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase());
    ensure!(
        name.len() <= 56 && starts_well && name.split('-').all(is_word),
        "'{}' can't be a handler's name: at most 56 lower-case letters and digits, a letter first, with single '-' between",
        plain(name)
    );
    ensure!(
        !BUILT_IN.contains(&name),
        "'{name}' is a built-in handler, which a DiscoveryHandler of this name replaces; choose another name"
    );
    Ok(())
}
