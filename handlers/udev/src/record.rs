//! Devices as the host describes them, as plain data.

/// One device of a [`Snapshot`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The sysfs path without `/sys`.
    pub devpath: String,
    /// Index of the parent in the snapshot.
    pub parent: Option<usize>,
    /// Set if the device matches the query itself; others came as ancestors.
    pub matched: bool,
    /// The last component of the path, with `/` where the kernel wrote `!`.
    pub sysname: String,
    /// Such as `tty`.
    pub subsystem: Option<String>,
    /// The name of the bound driver.
    pub driver: Option<String>,
    /// Such as `/dev/video0`.
    pub devnode: Option<String>,
    /// The properties that `ENV{..}` matches.
    pub properties: Vec<(String, String)>,
    /// Tags from udev's database.
    pub tags: Vec<String>,
    /// The requested attributes that the device has.
    pub attributes: Vec<(String, String)>,
}

impl Record {
    /// The value of a property.
    pub fn property(&self, name: &str) -> Option<&str> {
        find(&self.properties, name)
    }

    /// The links to the device node that udev made, without `/dev/`.
    pub fn links(&self) -> impl Iterator<Item = &str> {
        let links = self.property("DEVLINKS").unwrap_or_default().split_ascii_whitespace();
        links.map(|link| link.strip_prefix("/dev/").unwrap_or(link))
    }

    /// The value of a sysfs attribute.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        find(&self.attributes, name)
    }
}

fn find<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// The devices of one round. A parent stands before its children.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    records: Vec<Record>,
}

impl Snapshot {
    /// The record at this index.
    pub fn get(&self, index: usize) -> Option<&Record> {
        self.records.get(index)
    }

    /// The indices of the devices that meet the query themselves, in ascending order of path.
    pub fn matched(&self) -> impl Iterator<Item = usize> + '_ {
        self.records.iter().enumerate().filter(|(_, record)| record.matched).map(|(index, _)| index)
    }

    /// The device at this index, its parent, its parent's parent, and so on.
    pub fn lineage(&self, index: usize) -> impl Iterator<Item = &Record> {
        // Indices only go down, so that even records that name each other as parents come to an end.
        std::iter::successors(Some(index), |index| self.get(*index)?.parent.filter(|parent| parent < index))
            .filter_map(|index| self.get(index))
    }
}

impl Extend<Record> for Snapshot {
    fn extend<T: IntoIterator<Item = Record>>(&mut self, records: T) {
        self.records.extend(records);
    }
}

impl FromIterator<Record> for Snapshot {
    fn from_iter<T: IntoIterator<Item = Record>>(records: T) -> Self {
        Self { records: records.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lineage_ends_with_cyclic_or_missing_parents() {
        let parents = [None, Some(2), Some(1), Some(3), Some(77)];
        let snapshot: Snapshot = parents.into_iter().map(|parent| Record { parent, ..Record::default() }).collect();
        let depths: Vec<usize> = (0..6).map(|index| snapshot.lineage(index).count()).collect();
        assert_eq!(depths, [1, 1, 2, 1, 1, 0]);
    }
}
