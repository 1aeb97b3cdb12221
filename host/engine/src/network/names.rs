//! DNS names: which may be resolved, by whom, how often.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use akri_model::glob;

use super::resolver::Resolver;
use crate::log::{Place, RoundLog};
use crate::rates::Rates;

/// Names a round resolves.
const LOOKUPS: usize = 1024;
/// Bytes of a name (RFC 1035, 2.3.4).
const LENGTH: usize = 253;

/// The reason why a name has no addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameError {
    /// No grant covers it.
    #[error("the name '{0}' is not covered by grants.names")]
    NotGranted(String),
    /// It is none.
    #[error("'{0}' is not a DNS name")]
    Invalid(String),
    /// The round has resolved enough.
    #[error("more than {LOOKUPS} names are resolved")]
    TooMany,
    /// The name does not exist.
    #[error("{0}")]
    Unresolved(String),
    /// The name servers gave no answer, which says nothing about the name.
    #[error("{0}")]
    Failed(String),
}

/// The names of one round.
pub(crate) struct Names {
    granted: Vec<String>,
    resolver: Arc<Resolver>,
    rates: Rates,
    left: AtomicUsize,
}

impl Names {
    /// Names that one of the globs covers are resolved by `resolver`.
    pub(crate) fn new(granted: Vec<String>, resolver: Arc<Resolver>, rates: Rates) -> Self {
        Self { granted, resolver, rates, left: AtomicUsize::new(LOOKUPS) }
    }

    /// Resolves a name, once and now: whoever connects has to check these addresses and use them, since the next answer may
    /// be another.
    ///
    /// # Errors
    /// If no grant covers the name, if a bound is reached, or if there is no address.
    pub(crate) async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, NameError> {
        let name = self.granted(name)?;
        let fewer = |left: usize| left.checked_sub(1);
        self.left.try_update(Ordering::Relaxed, Ordering::Relaxed, fewer).map_err(|_| NameError::TooMany)?;
        self.rates.datagram().await;
        self.resolver.addresses(&name).await.map_err(|error| match error {
            NameError::Unresolved(why) => NameError::Unresolved(format!("'{name}': {why}")),
            error => error,
        })
    }

    /// Logs that a name may not be resolved.
    pub(crate) fn refuse(&self, error: &NameError, log: &RoundLog) {
        match error {
            NameError::NotGranted(name) => {
                let (what, entry) = (format!("the name '{name}'"), format!("['{name}']"));
                log.unreachable("names", &self.granted, Place(name.clone(), None), &what, &entry);
            }
            error => log.refused(error),
        }
    }

    /// The name in lower case and without the root's period, if it may be resolved.
    pub(crate) fn granted(&self, name: &str) -> Result<String, NameError> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if name.is_empty() || name.len() > LENGTH || !name.chars().all(is_name) {
            return Err(NameError::Invalid(akri_model::text::clean(&name, 64)));
        }
        let covers = |pattern: &String| glob::matches(&pattern.to_ascii_lowercase(), &name);
        if self.granted.iter().any(covers) { Ok(name) } else { Err(NameError::NotGranted(name)) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::resolver::system;
    use super::*;

    fn names(granted: &[&str], answer: &[&str]) -> Names {
        let answer: Vec<IpAddr> = answer.iter().map(|address| address.parse().unwrap()).collect();
        let granted = granted.iter().map(ToString::to_string).collect();
        Names::new(granted, Arc::new(Resolver::new(Arc::new(move |_| Ok(answer.clone())), 1)), Rates::default())
    }

    #[tokio::test]
    async fn only_granted_names_are_resolved() {
        let names = names(&["cam-*.Example", "localhost"], &["10.0.0.1"]);
        for name in ["cam-1.example", "CAM-2.EXAMPLE", "cam-3.example.", "localhost"] {
            assert_eq!(names.addresses(name).await, Ok(vec!["10.0.0.1".parse().unwrap()]), "{name}");
        }
        for name in ["cam.example", "cam-1.example.org", "example", "10.0.0.1", "127.1"] {
            assert_eq!(names.addresses(name).await, Err(NameError::NotGranted(name.to_owned())));
        }
        for name in ["", ".", "cam-1 .example", "cam-\u{f6}.example", "cam-1.example\0", &"x".repeat(254)] {
            assert!(matches!(names.addresses(name).await, Err(NameError::Invalid(_))), "{name:?}");
        }
    }

    #[tokio::test]
    async fn answers_are_bounded_canonical_and_not_empty() {
        let answer = names(&["*"], &["::ffff:10.0.0.1", "10.0.0.1", "fe80::1"]).addresses("a").await.unwrap();
        assert_eq!(answer.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.1", "fe80::1"]);
        let many: Vec<String> = (0..99).map(|i| format!("10.0.0.{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(names(&["*"], &many).addresses("a").await.unwrap().len(), 16);
        assert!(matches!(names(&["*"], &[]).addresses("a").await, Err(NameError::Unresolved(_))));
    }

    #[tokio::test]
    async fn round_resolves_so_many_names_and_no_more() {
        let names = names(&["*"], &["10.0.0.1"]);
        for _ in 0..1024 {
            names.addresses("a").await.unwrap();
        }
        assert_eq!(names.addresses("a").await, Err(NameError::TooMany));
    }

    #[tokio::test]
    async fn node_knows_itself() {
        let names = Names::new(vec!["localhost".to_owned()], Arc::new(Resolver::new(system(), 1)), Rates::default());
        assert!(names.addresses("localhost").await.unwrap().iter().all(IpAddr::is_loopback));
    }
}
