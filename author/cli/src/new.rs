//! `akri handler new` and `akri handler wit`: what an author starts with.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use akri_cli::output::{plain, print_text};
use anyhow::{Context as _, bail, ensure};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use crate::args::{NewArgs, WitArgs};
use crate::templates::{Files, wit as wit_files};

/// The handlers that come with Akri, as this command would name them.
const BUILT_IN: [&str; 5] = ["debug-echo", "mdns", "onvif", "opcua", "udev"];

/// Writes the files of a new handler. None of them may exist.
pub(super) fn run(args: &NewArgs) -> anyhow::Result<ExitCode> {
    let name = args.name.as_str();
    check_name(name)?;
    let directory = args.directory.clone().unwrap_or_else(|| PathBuf::from(name));
    let component = format!("{}.wasm", name.replace('-', "_"));
    write_all(&directory, &args.lang.files(args.world, name, &component, &program())?)?;
    let shown = shell_word(&plain(&directory.display().to_string()));
    print_text(&format!("created {shown}; to try it: cd {shown} && make run\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the WIT package. A directory that has another version of it gets this one.
pub(super) fn wit(args: &WitArgs) -> anyhow::Result<ExitCode> {
    for (path, text) in wit_files() {
        let written = write_new(&args.directory, &path, &text, true);
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
        let written = write_new(directory, path, bytes, false);
        written.with_context(|| format!("cannot write '{}'", directory.join(path).display()))?;
    }
    Ok(())
}

/// Writes a new file below a directory, in place of an earlier one if it `replaces` that. Neither the directory nor what is below
/// it may be a link: where others can write, such as in /tmp, they would choose the place. So each is opened from the one before.
fn write_new(directory: &Path, file: &Path, bytes: &[u8], replaces: bool) -> io::Result<()> {
    let directory: PathBuf = directory.components().collect(); // a '/' at its end would follow a link
    directory.parent().map_or(Ok(()), fs::create_dir_all)?;
    let mut at = subdirectory(CWD, &directory)?;
    for name in file.parent().into_iter().flat_map(Path::components) {
        at = subdirectory(at.as_fd(), name.as_ref())?;
    }
    let name = file.file_name().unwrap_or_default();
    if replaces {
        unlinkat(&at, name, AtFlags::empty())
            .or_else(|error| if error == Errno::NOENT { Ok(()) } else { Err(error) })?;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    File::from(openat(&at, name, flags, Mode::from_raw_mode(0o666))?).write_all(bytes)
}

/// Opens a directory in another one, and creates it if it is missing.
fn subdirectory(at: BorrowedFd<'_>, name: &Path) -> io::Result<OwnedFd> {
    match mkdirat(at, name, Mode::from_raw_mode(0o777)) {
        Err(error) if error != Errno::EXIST => return Err(error.into()),
        _ => {}
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOTDIR | Errno::LOOP => io::Error::other(format!("'{}' is a link or a file", name.display())),
        error => error.into(),
    })
}

/// Returns the path of this program for a Makefile, quoted if needed; it need not be in the PATH.
fn program() -> String {
    let path = env::current_exe().ok().and_then(|path| path.into_os_string().into_string().ok());
    path.filter(|path| !path.contains(['$', '#', '"', '`', '\\', '\n'])).unwrap_or_else(|| "akri".to_owned())
}

/// Quotes a text for a shell, if needed.
fn shell_word(text: &str) -> String {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use rustix::fs::{RenameFlags, renameat_with};

    use super::*;

    #[test]
    fn paths_for_a_shell_are_quoted_if_needed() {
        let words = ["./my-handler", "my handler", "it's"].map(shell_word);
        assert_eq!(words, ["./my-handler", "'my handler'", r"'it'\''s'"]);
    }

    #[test] // threat 62
    fn directories_that_are_swapped_for_links_lead_nowhere() {
        let root = env::temp_dir().join(format!("akri-new-{}", std::process::id()));
        let (project, outside, link) = (root.join("project"), root.join("outside"), root.join("link"));
        for directory in [&project.join("src"), &outside] {
            fs::create_dir_all(directory).unwrap();
        }
        symlink(&outside, &link).unwrap();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    renameat_with(CWD, &link, CWD, project.join("src"), RenameFlags::EXCHANGE).unwrap();
                }
            });
            for n in 0..3000 {
                write_new(&project, Path::new(&format!("src/{n}")), b"x", false).ok(); // a link may be there each time
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        if project.join("src").is_symlink() {
            renameat_with(CWD, &link, CWD, project.join("src"), RenameFlags::EXCHANGE).unwrap();
        }
        write_new(&project, Path::new("src/last"), b"x", false).unwrap();
        fs::remove_dir_all(&root).unwrap();
    }

    #[test] // threat 62
    fn link_is_refused_however_it_is_written() {
        let root = env::temp_dir().join(format!("akri-link-{}", std::process::id()));
        fs::create_dir_all(root.join("outside")).unwrap();
        symlink(root.join("outside"), root.join("link")).unwrap();
        for name in ["link", "link/", "link/."] {
            let error = write_new(&root.join(name), Path::new("a/b"), b"x", false).unwrap_err();
            assert!(error.to_string().contains("is a link or a file"), "{name}: {error}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
