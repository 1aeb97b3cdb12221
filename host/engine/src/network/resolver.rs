//! Asks the node for the addresses of names.

use std::net::IpAddr;
use std::sync::Arc;

use dns_lookup::LookupErrorKind;
use tokio::sync::Semaphore;

use super::names::NameError;

/// Addresses of a name; a client tries a few at most.
const ADDRESSES: usize = 16;

/// Returns the addresses of a name, in order of preference. It blocks.
pub(crate) type Lookup = Arc<dyn Fn(&str) -> Result<Vec<IpAddr>, NameError> + Send + Sync>;

impl From<dns_lookup::LookupError> for NameError {
    fn from(error: dns_lookup::LookupError) -> Self {
        match error.kind() {
            LookupErrorKind::NoName | LookupErrorKind::NoData => Self::Unresolved(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Asks as the node does: `/etc/hosts`, DNS and whatever else it is set up to ask.
pub(crate) fn system() -> Lookup {
    Arc::new(|name| Ok(dns_lookup::lookup_host(name)?.collect()))
}

/// The resolver for all rounds of a component.
pub(crate) struct Resolver {
    lookup: Lookup,
    permits: Arc<Semaphore>,
}

impl Resolver {
    /// Creates a resolver that asks `lookup` for so many names at once.
    pub(crate) fn new(lookup: Lookup, at_once: usize) -> Self {
        Self { lookup, permits: Arc::new(Semaphore::new(at_once)) }
    }

    /// Returns the addresses of a name, at least one, in order of preference. An IPv4 address mapped into IPv6 comes as that
    /// IPv4 address. A lookup whose caller is gone keeps its turn until it ends, since its thread can't be ended.
    ///
    /// # Errors
    /// If the name has no address, or if the name servers give no answer.
    pub(crate) async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, NameError> {
        let failed = |error: &dyn std::fmt::Display| NameError::Failed(error.to_string());
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|error| failed(&error))?;
        let (lookup, name) = (Arc::clone(&self.lookup), name.to_owned());
        let answer = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            lookup(&name)
        });
        let addresses = usable(&answer.await.map_err(|error| failed(&error))??);
        if addresses.is_empty() { Err(NameError::Unresolved("it has no address".to_owned())) } else { Ok(addresses) }
    }
}

/// Returns a bounded number of different addresses.
fn usable(answer: &[IpAddr]) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in answer.iter().map(IpAddr::to_canonical) {
        if addresses.len() < ADDRESSES && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn hanging_lookup_keeps_its_permit_until_it_ends() {
        let (release, hung) = mpsc::channel::<()>();
        let hung = Mutex::new(hung);
        let lookup = Arc::new(move |_: &str| {
            let _ = hung.lock().unwrap().recv();
            Ok(vec!["10.0.0.1".parse().unwrap()])
        });
        let resolver = Resolver::new(lookup, 1);
        assert!(timeout(Duration::from_millis(20), resolver.addresses("plc")).await.is_err());
        assert_eq!(resolver.permits.available_permits(), 0);
        drop(release);
        assert_eq!(resolver.addresses("plc").await, Ok(vec!["10.0.0.1".parse().unwrap()]));
    }

    #[test]
    fn unknown_name_is_no_failure() {
        let of = |code| NameError::from(dns_lookup::LookupError::new(code));
        assert!(matches!(of(nix::libc::EAI_NONAME), NameError::Unresolved(_)));
        assert!(matches!(of(nix::libc::EAI_NODATA), NameError::Unresolved(_)));
        assert!(matches!(of(nix::libc::EAI_AGAIN), NameError::Failed(_)));
        assert!(matches!(of(nix::libc::EAI_FAIL), NameError::Failed(_)));
        assert!(matches!(of(nix::libc::EAI_SYSTEM), NameError::Failed(_)));
    }
}
