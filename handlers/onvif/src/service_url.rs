//! URLs of a camera's services (XAddrs).

use std::fmt;
use std::net::IpAddr;

use http::Uri;
use http::uri::{Authority, Parts, PathAndQuery, Scheme};

/// Limit on a URL, in bytes.
const MAX_LENGTH: usize = 1024;

/// The URL of a service: `http` or `https`, with a host, without a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl {
    uri: Uri,
    ip: Option<IpAddr>,
}

impl ServiceUrl {
    /// Parses a URL; `None` if it is invalid, of another scheme, or contains user information.
    pub fn parse(text: &str) -> Option<Self> {
        let uri: Uri = Some(text).filter(|text| text.len() <= MAX_LENGTH)?.parse().ok()?;
        let (scheme, authority) = (uri.scheme()?, uri.authority()?);
        let host = authority.host();
        let is_plain =
            authority.as_str() == host || authority.port_u16().is_some() && !authority.as_str().contains('@');
        let is_http = scheme == &Scheme::HTTP || scheme == &Scheme::HTTPS;
        let ip = host.trim_matches(['[', ']']).parse().ok();
        (is_http && is_plain && !host.is_empty()).then_some(Self { uri, ip })
    }

    /// Parses a URL received from `sender`. An unspecified host, as some cameras announce, becomes the sender's
    /// address. `None` for a loopback address from another host.
    pub fn announced(text: &str, sender: IpAddr) -> Option<Self> {
        let url = Self::parse(text)?;
        let is_here = url.ip.map_or(url.host().eq_ignore_ascii_case("localhost"), |ip| ip.to_canonical().is_loopback());
        match url.ip {
            Some(ip) if ip.is_unspecified() => url.at(sender),
            _ if is_here && !sender.is_loopback() => None,
            _ => Some(url),
        }
    }

    /// Returns the URL with an address as its host.
    pub fn at(&self, address: IpAddr) -> Option<Self> {
        with_host(self.uri.clone(), address)
    }

    /// Returns the URI for an HTTP client.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Returns the host if it is an address.
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip
    }

    /// Returns path and query.
    pub fn path(&self) -> &str {
        self.uri.path_and_query().map_or("/", PathAndQuery::as_str)
    }

    /// Returns the host, by which concurrent connections are limited.
    pub fn host(&self) -> &str {
        self.uri.host().unwrap_or_default()
    }

    /// Returns the address, or else the name, with the port.
    pub fn socket(&self) -> (String, u16) {
        let host = self.ip.map_or_else(|| self.host().to_ascii_lowercase(), |ip| ip.to_string());
        let default = if self.uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
        (host, self.uri.port_u16().unwrap_or(default))
    }

    /// Returns the sort key, the most promising first: the sender's address, then not link-local, an address rather
    /// than a name, and an encrypted connection.
    pub fn rank(&self, sender: IpAddr) -> impl Ord + use<> {
        let is_link_local = match self.ip {
            Some(IpAddr::V4(ip)) => ip.is_link_local(),
            Some(IpAddr::V6(ip)) => ip.is_unicast_link_local(),
            None => false,
        };
        (self.ip != Some(sender), is_link_local, self.ip.is_none(), self.uri.scheme() != Some(&Scheme::HTTPS))
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uri.fmt(f)
    }
}

fn with_host(uri: Uri, ip: IpAddr) -> Option<ServiceUrl> {
    let host = match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let authority = match uri.port_u16() {
        Some(port) => format!("{host}:{port}"),
        None => host,
    };
    let mut parts: Parts = uri.into_parts();
    parts.authority = Some(authority.parse::<Authority>().ok()?);
    Some(ServiceUrl { uri: Uri::from_parts(parts).ok()?, ip: Some(ip) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SENDER: &str = "192.168.1.5";

    fn parse(text: &str) -> Option<ServiceUrl> {
        ServiceUrl::announced(text, SENDER.parse().unwrap())
    }

    fn read(text: &str) -> Option<String> {
        parse(text).map(|url| url.to_string())
    }

    #[test]
    fn urls_are_kept_as_the_camera_writes_them() {
        for text in [
            "http://192.168.1.5/onvif/device_service",
            "https://192.168.1.5:8443/onvif/device_service?x=1",
            "http://[fe80::1]:8080/onvif",
            "http://camera.example/onvif/device_service",
        ] {
            assert_eq!(read(text).as_deref(), Some(text));
        }
    }

    #[test]
    fn unspecified_host_becomes_the_sender() {
        assert_eq!(read("http://0.0.0.0:8080/onvif?x").as_deref(), Some("http://192.168.1.5:8080/onvif?x"));
        assert_eq!(read("http://0.0.0.0/onvif").as_deref(), Some("http://192.168.1.5/onvif"));
        assert_eq!(read("http://[::]:80/").as_deref(), Some("http://192.168.1.5:80/"));
        let v6 = ServiceUrl::announced("https://0.0.0.0:1/", "fe80::2".parse().unwrap()).unwrap();
        assert_eq!((v6.to_string().as_str(), v6.ip()), ("https://[fe80::2]:1/", Some("fe80::2".parse().unwrap())));
    }

    #[test]
    fn camera_cannot_send_us_to_loopback() {
        for text in [
            "http://127.0.0.1/",
            "http://[::1]:80/",
            "http://[::ffff:127.0.0.1]/",
            "http://localhost/",
            "http://LOCALHOST:8080/onvif",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        let here = ServiceUrl::announced("http://127.0.1.7:80/", "127.0.0.1".parse().unwrap());
        assert_eq!(here.unwrap().ip(), Some("127.0.1.7".parse().unwrap()));
    }

    #[test]
    fn other_urls_are_omitted() {
        for text in
            ["", "x", "/onvif", "ftp://a/b", "http://", "http:///x", "http://user:pw@10.0.0.1/", "http://10.0.0.1:x/"]
        {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read(&format!("http://10.0.0.1/{}", "x".repeat(MAX_LENGTH))), None);
    }

    #[test]
    fn most_promising_url_comes_first() {
        let ordered = [
            "https://192.168.1.5/",
            "http://192.168.1.5/",
            "https://10.0.0.1/",
            "http://10.0.0.1/",
            "http://camera.example/",
            "http://169.254.7.7/",
            "http://[fe80::1]/",
        ];
        let mut urls: Vec<ServiceUrl> = ordered.iter().rev().filter_map(|text| parse(text)).collect();
        urls.sort_by_key(|url| url.rank(SENDER.parse().unwrap()));
        let mut sorted: Vec<String> = urls.iter().map(ServiceUrl::to_string).collect();
        sorted[5..].sort(); // the link-local ones are alike
        assert_eq!(sorted, ordered);
    }

    proptest! {
        #[test]
        fn parsed_url_parses_to_itself(text in "(http|https)://[0-9a-z.:@\\[\\]/?#%]{0,30}") {
            if let Some(url) = parse(&text) {
                prop_assert_eq!(parse(&url.to_string()), Some(url));
            }
        }
    }
}
