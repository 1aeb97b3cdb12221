//! The files that a process may use, by Landlock.

use std::os::fd::AsFd as _;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, RestrictionStatus, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

/// The newest rules that are asked for; older kernels have fewer.
const LANDLOCK: ABI = ABI::V6;
fn no_landlock(error: &dyn std::fmt::Display) -> String {
    format!("Landlock can't be used: {error}")
}

/// Restricts this process to the files below a directory, without network.
pub(super) fn restrict_to_output(output: &Path) -> Result<(), String> {
    let directory = PathFd::new(output).map_err(|error| no_landlock(&error))?;
    let allowed = PathBeneath::new(directory.as_fd(), AccessFs::from_all(LANDLOCK));
    let status = Ruleset::default()
        .handle_access(AccessNet::from_all(LANDLOCK))
        .and_then(restricted_files)
        .and_then(|rules| rules.add_rule(allowed))
        .and_then(|rules| rules.restrict_self());
    enforced(status)
}

/// Restricts this process to reading these files. What does not exist is left out.
pub(super) fn restrict_to_reading(readable: &[&Path]) -> Result<(), String> {
    let status = restricted_files(Ruleset::default()).and_then(|rules| {
        let readable = readable.iter().filter_map(|path| Some((path.is_dir(), PathFd::new(path).ok()?)));
        let allowed = readable.map(|(is_directory, path)| {
            let file = BitFlags::from(AccessFs::ReadFile);
            let access = if is_directory { file | AccessFs::ReadDir } else { file };
            Ok::<_, RulesetError>(PathBeneath::new(path, access))
        });
        rules.add_rules(allowed)?.restrict_self()
    });
    enforced(status)
}

/// Rules by which no file can be used, and no process outside be sent a signal or reached by an abstract socket.
fn restricted_files(rules: Ruleset) -> Result<RulesetCreated, RulesetError> {
    rules.handle_access(AccessFs::from_all(LANDLOCK))?.scope(Scope::from_all(LANDLOCK))?.create()
}

fn enforced(status: Result<RestrictionStatus, RulesetError>) -> Result<(), String> {
    match status.map_err(|error| no_landlock(&error))?.ruleset {
        RulesetStatus::NotEnforced => Err(no_landlock(&"this kernel does not have it")),
        // What kernels before 6.12 lack of it (truncating by path, signals) is refused by the filter of system calls.
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
    }
}
