//! `akri handler pack`: a component as files that can be reviewed, checked and carried to nodes.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use akri_api::DiscoveryHandler;
use akri_cli::component::read;
use akri_cli::output::{plain, print_message, print_text};
use akri_cli::program::OWN_PROGRAM;
use akri_node::if_found;
use akri_oci::digest_of;
use akri_sandbox::precompile;
use anyhow::{Context as _, ensure};
use walkdir::WalkDir;

use crate::args::PackArgs;
use crate::component::{MAX_COMPILE_LIMITS, load_with_object};
use crate::image::yaml;
use crate::inspect;
use crate::rules::file_name;

/// The imports of the component, and what it is granted.
const REPORT: &str = "inspect.txt";
/// The directory of machine code.
const COMPILED: &str = "compiled";
/// The checksums of all other files.
const SUMS: &str = "SHA256SUMS";

/// The directory of unfinished files. Those of a run that was interrupted are removed by the next one.
const PARTS: &str = ".akri-parts";

/// Writes the files, and prints their checksums.
pub(super) async fn run(args: &PackArgs) -> anyhow::Result<ExitCode> {
    let name = file_name(&args.component)?;
    let bytes = read(&args.component)?;
    let (component, rules, object) = load_with_object(&args.component, bytes.clone(), &args.handler_object).await?;
    let manifest = yaml(&pinned(&object, component.digest())?)?;
    let report = inspect::described(&component, &bytes, &rules);
    let manifest_name = Path::new(name).with_extension("yaml");
    ensure!(
        ![REPORT, COMPILED, SUMS].contains(&name) && manifest_name != Path::new(name),
        "a packed directory has a file '{name}' of its own; rename the component, to '*.wasm' for example"
    );
    create_empty(&args.out)?;
    let parts = args.out.join(PARTS);
    fs::create_dir(&parts).with_context(|| format!("cannot create '{}'", parts.display()))?;
    write(&parts.join(name), &bytes)?;
    write(&parts.join(manifest_name), manifest.as_bytes())?;
    write(&parts.join(REPORT), report.as_bytes())?;
    if args.precompiled {
        let directory = std::path::absolute(parts.join(COMPILED)).context("--out")?;
        let component = parts.join(name);
        precompile(Path::new(OWN_PROGRAM), &component, args.target, &directory, &MAX_COMPILE_LIMITS)?;
    }
    let sums = checksums(&parts)?;
    write(&parts.join(SUMS), sums.as_bytes())?;
    move_up(&parts, &args.out).with_context(|| format!("cannot write '{}'", args.out.display()))?;
    let description = component.description();
    print_message(format!(
        "packed {} {} into '{}'",
        plain(&description.name),
        plain(&description.version),
        args.out.display()
    ));
    print_text(&sums)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the object with the digest of the component, so that an agent refuses any other.
fn pinned(object: &DiscoveryHandler, digest: &str) -> anyhow::Result<DiscoveryHandler> {
    ensure!(
        object.spec.component.image.is_none(),
        "the DiscoveryHandler names an image, which is pinned already; to ship a file, name that in spec.component.file"
    );
    let mut pinned = object.clone();
    pinned.spec.component.digest = Some(format!("sha256:{digest}"));
    Ok(pinned)
}

/// Creates a directory, unless it is there and empty. Otherwise files would be in it that nobody means to ship. A link is not
/// followed.
fn create_empty(directory: &Path) -> anyhow::Result<()> {
    ensure!(!directory.is_symlink(), "'{}' is a link; name a new directory with --out", directory.display());
    let cannot = || format!("cannot create '{}'", directory.display());
    fs::create_dir_all(directory).with_context(cannot)?;
    if_found(fs::remove_dir_all(directory.join(PARTS))).with_context(cannot)?;
    let is_empty = fs::read_dir(directory).with_context(cannot)?.next().is_none();
    ensure!(is_empty, "'{}' is not empty; name a new directory with --out", directory.display());
    Ok(())
}

/// Moves the files of a directory into another one, and removes it.
fn move_up(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::rename(entry.path(), to.join(entry.file_name()))?;
    }
    fs::remove_dir(from)
}

/// Writes a new file; one that is there by now is not followed or replaced.
fn write(file: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let created = fs::File::create_new(file).and_then(|mut created| created.write_all(bytes));
    created.with_context(|| format!("cannot write '{}'", file.display()))
}

/// Returns the digest and name of each file, as `sha256sum --check` reads them.
fn checksums(directory: &Path) -> anyhow::Result<String> {
    let mut lines = String::new();
    for entry in WalkDir::new(directory).sort_by_file_name() {
        let entry = entry.context("cannot read what was written")?;
        if entry.file_type().is_file() {
            let file = entry.path().strip_prefix(directory)?.display();
            let bytes = fs::read(entry.path()).with_context(|| format!("cannot read '{file}'"))?;
            lines += &format!("{}  {file}\n", digest_of(&bytes).hex());
        }
    }
    Ok(lines)
}
