//! `akri:discovery/udev`: queries about the node's devices, answered in pages.

use std::time::Instant;
use std::vec;

use akri_node::sysfs::{self, Bounds, Query};
use wasmtime::component::Resource;

use crate::bindings::types::AccessError;
use crate::bindings::udev::{Entry, Host, HostQuery, HostSnapshot};
use crate::capabilities::access_error;
use crate::round::Round;

/// Entries of one page.
const PAGE: u32 = 1000;
/// Bytes of one page, about: it becomes memory of the guest at once.
const PAGE_BYTES: usize = 1 << 20;

/// A snapshot that is being read.
#[derive(Debug)]
pub struct Pages {
    entries: vec::IntoIter<sysfs::Entry>,
    unreadable: Vec<String>,
    skipped: u32,
    bytes: usize,
}

impl Pages {
    fn new(snapshot: sysfs::Snapshot) -> Self {
        let bytes = snapshot.entries.iter().map(sysfs::Entry::bytes).sum();
        let sysfs::Snapshot { entries, unreadable, skipped } = snapshot;
        Self { entries: entries.into_iter(), unreadable, skipped, bytes }
    }

    /// At least one entry, if there is one and it is asked for.
    fn next(&mut self, max: u32) -> Vec<Entry> {
        let (mut page, mut bytes) = (Vec::new(), 0);
        for _ in 0..max.min(PAGE) {
            let Some(entry) = self.entries.next() else { break };
            bytes += entry.bytes();
            page.push(entry.into());
            if bytes >= PAGE_BYTES {
                break;
            }
        }
        page
    }
}

impl From<sysfs::Entry> for Entry {
    fn from(entry: sysfs::Entry) -> Self {
        Self {
            devpath: entry.devpath,
            parent: entry.parent,
            matched: entry.matched,
            sysname: entry.sysname,
            subsystem: entry.subsystem,
            driver: entry.driver,
            devnode: entry.devnode,
            properties: entry.properties,
            tags: entry.tags,
            attributes: entry.attributes,
        }
    }
}

impl Host for Round {}

/// Functions that set what a query asks for, by the methods of the query.
macro_rules! set_query {
    ($($function:ident($($text:ident),*))*) => {
        $(fn $function(&mut self, query: Resource<Query>, $($text: String),*) -> wasmtime::Result<()> {
            self.table.get_mut(&query)?.$function($($text),*);
            Ok(())
        })*
    };
}

impl HostQuery for Round {
    fn new(&mut self) -> wasmtime::Result<Resource<Query>> {
        Ok(self.table.push(Query::default())?)
    }

    set_query! {
        match_subsystem(glob) match_sysname(glob) match_devpath(glob) match_property(name, glob) match_tag(glob)
        read_attribute(name)
    }

    fn include_ancestors(&mut self, query: Resource<Query>) -> wasmtime::Result<()> {
        self.table.get_mut(&query)?.ancestors = true;
        Ok(())
    }

    fn include_descendants(&mut self, query: Resource<Query>) -> wasmtime::Result<()> {
        self.table.get_mut(&query)?.descendants = true;
        Ok(())
    }

    async fn run(&mut self, query: Resource<Query>) -> wasmtime::Result<Result<Resource<Pages>, AccessError>> {
        let query = self.table.get(&query)?.clone();
        match self.read_sysfs(query).await {
            Ok(snapshot) => Ok(Ok(self.hold_snapshot(snapshot)?)),
            Err(error) => Ok(Err(error)),
        }
    }

    fn drop(&mut self, query: Resource<Query>) -> wasmtime::Result<()> {
        self.table.delete(query)?;
        Ok(())
    }
}

impl HostSnapshot for Round {
    fn next(&mut self, snapshot: Resource<Pages>, max: u32) -> wasmtime::Result<Vec<Entry>> {
        Ok(self.table.get_mut(&snapshot)?.next(max))
    }

    fn unreadable(&mut self, snapshot: Resource<Pages>) -> wasmtime::Result<Vec<String>> {
        Ok(self.table.get(&snapshot)?.unreadable.clone())
    }

    fn skipped(&mut self, snapshot: Resource<Pages>) -> wasmtime::Result<u32> {
        Ok(self.table.get(&snapshot)?.skipped)
    }

    fn drop(&mut self, snapshot: Resource<Pages>) -> wasmtime::Result<()> {
        self.snapshot_bytes += self.table.delete(snapshot)?.bytes;
        Ok(())
    }
}

impl Round {
    /// Gives the guest a snapshot.
    pub fn hold_snapshot(&mut self, snapshot: sysfs::Snapshot) -> wasmtime::Result<Resource<Pages>> {
        let pages = Pages::new(snapshot);
        self.snapshot_bytes = self.snapshot_bytes.saturating_sub(pages.bytes);
        Ok(self.table.push(pages)?)
    }

    /// Reads sysfs on a thread that may block. A read that hangs in the kernel can't be ended, so a component may have two
    /// such threads at most and waits, within its round, for one of them.
    ///
    /// # Errors
    /// If nothing is granted, if there is too much of it, or if it can't be read.
    pub async fn read_sysfs(&mut self, query: Query) -> Result<sysfs::Snapshot, AccessError> {
        let granted = self.call.grants.udev_subsystems.clone();
        if granted.is_empty() {
            self.log.not_granted("udev", &"a query about devices");
            let field = self.call.grants.field("udev.subsystems");
            return Err(AccessError::NotGranted(format!("no subsystem of devices is granted; name some in {field}")));
        }
        let closed = |_| AccessError::Unavailable("akri:discovery/udev: the host is shutting down".to_owned());
        let permit = self.component_context.udev_runs.clone().acquire_owned().await.map_err(closed)?;
        let (sysfs, bounds) = (
            self.component_context.sysfs.clone(),
            Bounds { bytes: self.snapshot_bytes, until: self.deadline.last_wait() },
        );
        let rates = self.call.rates.clone();
        let run = tokio::task::spawn_blocking(move || {
            let (_permit, began) = (permit, Instant::now());
            let snapshot = sysfs.run(&query, &granted, &bounds);
            rates.add_processor_time(began.elapsed());
            snapshot
        });
        let ended = |error| AccessError::Unavailable(format!("akri:discovery/udev: {error}"));
        run.await.map_err(ended)?.map_err(|stop| access_error("udev", stop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(count: usize, bytes: usize) -> Pages {
        let entry = sysfs::Entry { devpath: "x".repeat(bytes), ..Default::default() };
        Pages::new(sysfs::Snapshot { entries: vec![entry; count], ..Default::default() })
    }

    #[test]
    fn pages_are_bounded_by_count() {
        let mut pages = pages(1100, 1);
        assert_eq!(pages.next(7).len(), 7);
        assert_eq!(pages.next(u32::MAX).len(), 1000);
        assert_eq!(pages.next(u32::MAX).len(), 93);
        assert!(pages.next(1).is_empty());
    }

    #[test]
    fn pages_are_bounded_by_bytes() {
        let mut pages = pages(5, PAGE_BYTES / 2);
        assert_eq!(pages.next(10).len(), 2);
        assert_eq!(pages.next(10).len(), 2);
        assert_eq!(pages.next(10).len(), 1);
    }

    #[test]
    fn entry_larger_than_a_page_is_still_handed_out() {
        assert_eq!(pages(2, 2 * PAGE_BYTES).next(10).len(), 1);
    }
}
