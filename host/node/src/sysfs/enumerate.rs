//! Enumerates devices: the links in `/class/*` and `/bus/*/devices`, as libudev follows them.

use std::collections::BTreeMap;

use rustix::fs::FileType;

use crate::sysfs::Query;
use crate::sysfs::device::Reader;
use crate::sysfs::dir::{Dir, Names, resolve};
use crate::sysfs::query::meets;
use crate::{Stop, if_found};

/// Devices by path, with their subsystem.
pub(super) type DevicePaths = BTreeMap<String, String>;

/// Lists the devices whose names may meet the query, of granted subsystems; every device if there is no query. Names are
/// compared before anything is opened.
pub(super) fn devices(reader: &mut Reader<'_>, query: Option<&Query>) -> Result<DevicePaths, Stop> {
    let mut found = DevicePaths::new();
    for (directory, subsystem) in subsystems(reader)? {
        if query.is_none_or(|query| meets(&query.subsystems, &subsystem) && reader.granted(Some(&subsystem))) {
            list(reader, query, &directory, &subsystem, &mut found)?;
        }
    }
    Ok(found)
}

/// The directories that hold links to devices, with the subsystem of these.
fn subsystems(reader: &Reader<'_>) -> Result<Vec<(String, String)>, Stop> {
    let classes = contents(reader, "class", FileType::Directory)?;
    let buses = contents(reader, "bus", FileType::Directory)?;
    // An empty directory where sysfs should be is no machine without devices.
    if classes.is_none() && buses.is_none() {
        return Err(Stop::Unavailable("sysfs is not mounted: there is neither class nor bus".to_owned()));
    }
    let names = |contents: Option<(Dir, Names)>| contents.into_iter().flat_map(|(_, names)| names).flatten();
    let classes = names(classes).map(|name| (format!("class/{name}"), name));
    let buses = names(buses).map(|name| (format!("bus/{name}/devices"), name));
    let mut all: Vec<_> = classes.chain(buses).collect();
    // Kernels without the class show block devices here alone.
    if !all.iter().any(|(directory, _)| directory == "class/block") {
        all.push(("block".to_owned(), "block".to_owned()));
    }
    Ok(all)
}

/// A directory and what is in it, none if there is no such directory. Any other error ends the run: devices that are
/// there would be missing from its answer.
fn contents(reader: &Reader<'_>, path: &str, kind: FileType) -> Result<Option<(Dir, Names)>, Stop> {
    let read = |dir: Dir| dir.names(kind).map(|names| (dir, names));
    let contents = if_found(reader.root.dir(path).and_then(read));
    contents.map_err(|error| Stop::Unavailable(format!("sysfs: {path}: {error}")))
}

fn list(
    reader: &mut Reader<'_>,
    query: Option<&Query>,
    directory: &str,
    subsystem: &str,
    found: &mut DevicePaths,
) -> Result<(), Stop> {
    let Some((dir, names)) = contents(reader, directory, FileType::Symlink)? else { return Ok(()) };
    let from = format!("/{directory}");
    for name in names {
        let sysname = name.as_deref().map(|name| name.replace('!', "/")).unwrap_or_default();
        if query.is_some_and(|query| !meets(&query.sysnames, &sysname)) || !reader.count_device()? {
            continue;
        }
        let path = name.and_then(|name| dir.link(&name)).and_then(|target| resolve(&from, &target));
        let Some(path) = path.filter(|path| path.starts_with("/devices/")) else {
            reader.skip();
            continue;
        };
        if query.is_none_or(|query| meets(&query.devpaths, &path)) {
            found.insert(path, subsystem.to_owned());
        }
    }
    Ok(())
}
