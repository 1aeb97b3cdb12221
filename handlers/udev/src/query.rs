//! The host query for all rules together, and the triggers of the next round.

use std::collections::BTreeSet;

use crate::{
    glob::Glob,
    rule::{Filter, Key, Operator, Rule, Scope},
};

/// Maximum number of globs of one kind in a query. Hosts bound their queries (Akri's at 32), and so many narrow little.
const MAX_GLOBS: usize = 32;

/// A query to the host. It finds every device that matches a rule, and often more: the rules decide.
///
/// The globs of one kind are alternatives, none means any; different kinds all have to hold. Ancestors are asked for
/// in any case: whether a device without a device node needs them is known only after the look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// Globs of subsystems.
    pub subsystems: BTreeSet<String>,
    /// Globs of the last component of the path.
    pub sysnames: BTreeSet<String>,
    /// Globs of paths.
    pub devpaths: BTreeSet<String>,
    /// The attributes the rules name.
    pub attributes: BTreeSet<String>,
}

impl Query {
    /// The query that covers these rules.
    ///
    /// Only names narrow it, since the host knows them without opening a file. (Properties could not narrow it for more
    /// than one rule anyway, as those of different names would all have to hold.)
    pub fn covering(rules: &[Rule]) -> Self {
        Self {
            subsystems: narrowing(rules, &Key::Subsystem),
            sysnames: narrowing(rules, &Key::Kernel),
            devpaths: narrowing(rules, &Key::Devpath),
            attributes: attributes(rules),
        }
    }

    /// The query that finds one device, whether any of these rules holds for it or not.
    pub fn device(devpath: &str, rules: &[Rule]) -> Self {
        let devpaths = BTreeSet::from([Glob::plain(devpath).widened()]);
        Self { devpaths, attributes: attributes(rules), ..Self::default() }
    }
}

fn attributes(rules: &[Rule]) -> BTreeSet<String> {
    rules.iter().flat_map(|rule| &rule.filters).filter_map(attribute).collect()
}

fn attribute(filter: &Filter) -> Option<String> {
    if let Key::Attr(name) = &filter.key { Some(name.clone()) } else { None }
}

/// Globs of which each device that meets a rule matches one. Empty if a rule leaves the key open, since nothing may be
/// left out then, or if they would be too many for a query.
fn narrowing(rules: &[Rule], key: &Key) -> BTreeSet<String> {
    let demanded: Option<Vec<&[Glob]>> = rules.iter().map(|rule| demanded(rule, key)).collect();
    let globs: BTreeSet<String> = demanded.unwrap_or_default().into_iter().flatten().map(Glob::widened).collect();
    if globs.len() <= MAX_GLOBS { globs } else { BTreeSet::new() }
}

/// The alternatives a rule demands of a key, if it does. A pattern that the empty string matches demands nothing: it
/// holds for a device without a subsystem.
fn demanded<'a>(rule: &'a Rule, key: &Key) -> Option<&'a [Glob]> {
    rule.filters
        .iter()
        .find(|filter| {
            filter.scope == Scope::Device
                && filter.key == *key
                && filter.operator == Operator::Equal
                && !filter.pattern.matches("")
        })
        .map(|filter| filter.pattern.alternatives())
}

/// The subsystems whose uevents can change what these rules find; `*` alone if that may be any.
pub fn wake_subsystems(rules: &[Rule]) -> BTreeSet<String> {
    let literals = |rule| demanded(rule, &Key::Subsystem)?.iter().map(Glob::literal).collect::<Option<Vec<_>>>();
    let all: Option<Vec<Vec<String>>> = rules.iter().map(literals).collect();
    all.map_or_else(|| BTreeSet::from(["*".to_owned()]), |all| all.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> Vec<Rule> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn set(texts: &[&str]) -> BTreeSet<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn one_rule_narrows_by_every_name_it_requires() {
        let query = Query::covering(&rules(&[
            r#"SUBSYSTEM=="video4linux|media", KERNEL=="video[0-9]*", DEVPATH=="/devices/pci*", ATTRS{idVendor}=="046d", ATTR{index}!="1""#,
        ]));
        assert_eq!(query.subsystems, set(&["media", "video4linux"]));
        assert_eq!(query.sysnames, set(&["video?*"]));
        assert_eq!(query.devpaths, set(&["/devices/pci*"]));
        assert_eq!(query.attributes, set(&["idVendor", "index"]));
    }

    #[test]
    fn device_is_queried_by_path_under_any_name() {
        let query = Query::device("/devices/a[1]/b|c*", &rules(&[r#"KERNEL=="x", ATTRS{idVendor}=="046d""#]));
        let (devpaths, attributes) = (set(&["/devices/a?1?/b?c?"]), set(&["idVendor"]));
        assert_eq!(query, Query { devpaths, attributes, ..Query::default() });
    }

    #[test]
    fn several_rules_narrow_by_common_requirements() {
        let query = Query::covering(&rules(&[r#"SUBSYSTEM=="tty", KERNEL=="ttyUSB*""#, r#"SUBSYSTEM=="usb""#]));
        assert_eq!((query.subsystems, query.sysnames), (set(&["tty", "usb"]), set(&[])));
        let query = Query::covering(&rules(&[r#"SUBSYSTEM=="tty""#, r#"KERNEL=="null""#]));
        assert_eq!(query, Query::default());
    }

    #[test]
    fn inequality_ancestors_and_empty_alternatives_do_not_narrow() {
        for rule in [
            r#"SUBSYSTEM!="tty""#,
            r#"SUBSYSTEMS=="usb", KERNELS=="1-1""#,
            r#"SUBSYSTEM=="|tty""#,
            r#"SUBSYSTEM=="*""#,
            r#"ENV{SUBSYSTEM}=="tty", TAG=="systemd", DRIVER=="usb""#,
        ] {
            assert_eq!(Query::covering(&rules(&[rule])), Query::default(), "{rule}");
        }
    }

    #[test]
    fn names_beyond_the_limit_do_not_narrow() {
        let rule = |count: usize| {
            let names: Vec<String> = (0..count).map(|index| format!("video{index}")).collect();
            Query::covering(&rules(&[&format!(r#"KERNEL=="{}""#, names.join("|"))])).sysnames.len()
        };
        assert_eq!((rule(32), rule(33)), (32, 0));
    }

    #[test]
    fn second_filter_on_a_key_narrows_when_the_first_cannot() {
        let query = Query::covering(&rules(&[r#"SUBSYSTEM!="usb", SUBSYSTEM=="tty""#]));
        assert_eq!(query.subsystems, set(&["tty"]));
    }

    #[test]
    fn uevents_of_named_subsystems_start_rounds() {
        for (texts, wake) in [
            (&[][..], &[][..]),
            (&[r#"SUBSYSTEM=="tty""#, r#"SUBSYSTEM=="usb|tty", KERNEL=="1-*""#], &["tty", "usb"]),
            (&[r#"SUBSYSTEM=="tty""#, r#"KERNEL=="null""#], &["*"]),
            (&[r#"SUBSYSTEM=="tty*""#], &["*"]),
            (&[r#"SUBSYSTEM=="tty|""#], &["*"]),
            (&[r#"SUBSYSTEM!="tty""#], &["*"]),
            (&[r#"SUBSYSTEMS=="usb""#], &["*"]),
        ] {
            assert_eq!(wake_subsystems(&rules(texts)), set(wake), "{texts:?}");
        }
    }

    #[test]
    fn query_admits_every_device_a_rule_matches() {
        let snapshot = crate::fixture::snapshot();
        let rules = rules(&[
            r#"SUBSYSTEM=="video4linux", KERNEL=="video[!1]""#,
            r#"SUBSYSTEM=="u[rs]b|net", KERNEL=="1-*|l\o*", DEVPATH=="*""#,
            r#"SUBSYSTEM=="?*", KERNEL=="n?ll|ttyS[0-3]""#,
        ]);
        let query = Query::covering(&rules);
        assert!(!query.subsystems.is_empty() && !query.sysnames.is_empty() && query.devpaths.is_empty());
        let admits = |globs: &BTreeSet<String>, value: &str| {
            globs.iter().any(|glob| crate::glob::Pattern::parse(glob).unwrap().matches(value))
        };
        let holding: Vec<usize> =
            snapshot.matched().filter(|index| rules.iter().any(|rule| rule.holds(&snapshot, *index))).collect();
        assert_eq!(holding.len(), 6);
        for record in holding.into_iter().filter_map(|index| snapshot.get(index)) {
            assert!(admits(&query.sysnames, &record.sysname), "{record:?}");
            assert!(admits(&query.subsystems, record.subsystem.as_deref().unwrap()), "{record:?}");
        }
    }
}
