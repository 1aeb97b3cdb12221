//! Addresses that servers name, and which of them may be read.

use http::uri::Authority;
use http::{HeaderValue, Uri};

use crate::RegistryError;
use crate::manifest::shortened;

/// Returns the host of an address for messages.
pub(crate) fn host_of(uri: &Uri) -> String {
    uri.authority().map(|authority| shortened(authority.as_str())).unwrap_or_default()
}

/// Returns what credentials are bound to: scheme, host and port.
pub(crate) fn origin(uri: &Uri) -> (Option<&str>, Option<&str>, u16) {
    let usual = if uri.scheme_str() == Some("http") { 80 } else { 443 };
    (uri.scheme_str(), uri.host(), uri.port_u16().unwrap_or(usual))
}

/// Resolves an address that a server names.
pub(crate) fn join(from: &Uri, location: &HeaderValue, insecure: &[String]) -> Result<Uri, RegistryError> {
    let text = String::from_utf8_lossy(location.as_bytes());
    let error = || RegistryError::target(&host_of(from), &text);
    let target = match text.strip_prefix('/') {
        Some(rest) if !rest.starts_with('/') => {
            let (scheme, authority) = from.scheme().zip(from.authority()).ok_or_else(error)?;
            format!("{scheme}://{authority}{text}")
        }
        _ => text.clone().into_owned(),
    };
    let target: Uri = target.parse().map_err(|_| error())?;
    if may_be_read(&target, insecure) { Ok(target) } else { Err(error()) }
}

/// Returns whether an address may be read: by TLS, or of one of the registries that need none.
pub(crate) fn may_be_read(uri: &Uri, insecure: &[String]) -> bool {
    let authority = uri.authority().map(Authority::as_str).unwrap_or_default();
    let is_invalid = authority.is_empty() || authority.contains('@');
    match uri.scheme_str() {
        _ if is_invalid => false,
        Some("https") => true,
        Some("http") => insecure.iter().any(|insecure| insecure == authority),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 74
    fn redirects_lead_to_https_or_to_named_registries() {
        let from: Uri = "https://r.example/v2/a".parse().unwrap();
        let local: Uri = "http://localhost:5000/v2/a".parse().unwrap();
        let named = ["localhost:5000", "127.0.0.1:5001"].map(str::to_owned);
        let join = |from: &Uri, to: &str, insecure: &[String]| {
            join(from, &HeaderValue::from_str(to).unwrap(), insecure).map(|uri| uri.to_string()).ok()
        };
        for (to, expected) in [
            ("/v2/b?x=y", Some("https://r.example/v2/b?x=y")),
            ("https://cdn.example/b", Some("https://cdn.example/b")),
            ("http://cdn.example/b", None),
            ("http://169.254.169.254/latest", None),
            ("http://localhost:5000/b", None),
            ("//cdn.example/b", None),
            ("https://user:word@cdn.example/b", None),
            ("file:///etc/passwd", None),
            ("ftp://cdn.example/b", None),
            ("b", None),
            ("", None),
        ] {
            assert_eq!(join(&from, to, &[]).as_deref(), expected, "{to}");
        }
        for (to, expected) in [
            ("/b", Some("http://localhost:5000/b")),
            ("http://127.0.0.1:5001/b", Some("http://127.0.0.1:5001/b")),
            ("http://127.0.0.1:5002/b", None),
            ("http://127.0.0.1/b", None),
            ("http://localhost:5000@127.0.0.1:5002/b", None),
            ("http://r.example/b", None),
        ] {
            assert_eq!(join(&local, to, &named).as_deref(), expected, "{to}");
        }
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        assert_eq!(origin(&from), origin(&uri("https://r.example:443/b")));
        assert_eq!(origin(&uri("http://r.example:80")), origin(&uri("http://r.example")));
        assert_ne!(origin(&from), origin(&uri("http://r.example:443")));
        let long: Uri = format!("https://{}.example/", "a".repeat(5000)).parse().unwrap();
        assert!(host_of(&long).len() < 1000);
    }
}
