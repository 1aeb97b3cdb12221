//! Rules as they are after parsing, and what it means that one holds.

use std::fmt;

use crate::{glob::Pattern, record::Record, record::Snapshot};

/// One udev rule: filters that all have to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The filters, at least one.
    pub filters: Vec<Filter>,
}

/// A comparison, such as `ATTRS{idVendor}=="046d"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// The devices whose key is compared.
    pub scope: Scope,
    /// The compared key.
    pub key: Key,
    /// The operator.
    pub operator: Operator,
    /// The pattern that the value has to match.
    pub pattern: Pattern,
}

/// The devices whose key a filter compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The device's own (`KERNEL`, `ATTR{..}`, ...).
    Device,
    /// The key of the device or of one of its ancestors (`KERNELS`, `ATTRS{..}`, ...).
    Lineage,
}

/// A key of a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// A sysfs attribute of this name.
    Attr(String),
    /// The sysfs path without `/sys`.
    Devpath,
    /// The driver's name.
    Driver,
    /// A property of this name, from the kernel or from udev's database.
    Env(String),
    /// The last component of the path.
    Kernel,
    /// The subsystem's name.
    Subsystem,
    /// A link to the device node that udev made, without `/dev/`.
    Symlink,
    /// A tag from udev's database.
    Tag,
}

/// An operator of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
}

impl Rule {
    /// Returns whether the rule holds for the device at `index`: every filter on the device itself does, and all filters on the
    /// lineage do for one and the same of the device and its ancestors, as in udev.
    pub fn holds(&self, snapshot: &Snapshot, index: usize) -> bool {
        let all = |scope: Scope, record: &Record| {
            self.filters.iter().filter(|filter| filter.scope == scope).all(|filter| filter.holds(record))
        };
        snapshot.get(index).is_some_and(|device| all(Scope::Device, device))
            && snapshot.lineage(index).any(|candidate| all(Scope::Lineage, candidate))
    }
}

impl Filter {
    /// Returns whether the filter holds for this record alone. Without a driver, a subsystem or a property the empty string is
    /// compared. Without the attribute the filter does not hold, whatever the operator.
    pub fn holds(&self, record: &Record) -> bool {
        let value = match (&self.key, self.key.value(record)) {
            (Key::Symlink, _) => return self.compare(record.links().any(|link| self.pattern.matches(link))),
            (Key::Tag, _) => return self.compare(record.tags.iter().any(|tag| self.pattern.matches(tag))),
            (Key::Attr(_), None) => return false,
            (Key::Attr(_), Some(value)) if !self.pattern.minds_trailing_space() => value.trim_end(),
            (_, value) => value.unwrap_or_default(),
        };
        self.compare(self.pattern.matches(value))
    }

    /// Returns why the filter can't match any device, if its value shows it. As in udev, such a rule is valid.
    pub fn hint(&self) -> Option<String> {
        let prefix = match self.key {
            Key::Devpath => "/sys/",
            Key::Symlink => "/dev/",
            _ => return None,
        };
        let is_idle = self.operator == Operator::Equal
            && self.pattern.alternatives().iter().all(|glob| glob.literal_prefix().starts_with(prefix));
        let without = prefix.trim_end_matches('/');
        is_idle.then(|| format!("{self} matches no device: {} is compared without '{without}'", self.key.name()))
    }

    fn compare(&self, matches: bool) -> bool {
        matches == (self.operator == Operator::Equal)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, filter) in self.filters.iter().enumerate() {
            write!(f, "{}{filter}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.scope == Scope::Lineage { "S" } else { "" };
        let operator = if self.operator == Operator::Equal { "==" } else { "!=" };
        let value = self.pattern.to_string().replace('"', "\\\"");
        match &self.key {
            Key::Attr(name) => write!(f, "ATTR{plural}{{{name}}}{operator}\"{value}\""),
            Key::Env(name) => write!(f, "ENV{{{name}}}{operator}\"{value}\""),
            key => write!(f, "{}{plural}{operator}\"{value}\"", key.name()),
        }
    }
}

impl Key {
    /// Returns the record's value for the key. There is none for links and tags, which may be many.
    pub fn value<'a>(&self, record: &'a Record) -> Option<&'a str> {
        match self {
            Self::Attr(name) => record.attribute(name),
            Self::Devpath => Some(&record.devpath),
            Self::Driver => record.driver.as_deref(),
            Self::Env(name) => record.property(name),
            Self::Kernel => Some(&record.sysname),
            Self::Subsystem => record.subsystem.as_deref(),
            Self::Symlink | Self::Tag => None,
        }
    }

    /// The singular field name without its braces.
    fn name(&self) -> &'static str {
        match self {
            Self::Attr(_) => "ATTR",
            Self::Devpath => "DEVPATH",
            Self::Driver => "DRIVER",
            Self::Env(_) => "ENV",
            Self::Kernel => "KERNEL",
            Self::Subsystem => "SUBSYSTEM",
            Self::Symlink => "SYMLINK",
            Self::Tag => "TAG",
        }
    }
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
